"""The compute of a device in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ofms.compute.client import Arrays, Description, Layout
from ofms.compute.local import LocalNetworks, Tensors
from ofms.compute.tasks import sample_losses
from ofms.core.typing import AnyArray, Floats
from ofms.models.index import Task
from ofms.models.zoo import build_skeleton
from ofms.plugins import Trust
from ofms.policies.local_updates import LocalUpdate


class TorchClient:
    """Networks that contain the tensors of held models, and others without tensors for fine-tuning.

    Two of each, so that fine-tuning and predicting do not interfere. Models that are not held take no memory.
    """

    def __init__(self, modules: Sequence[nn.Module], trainable: Sequence[tuple[str, ...]], task: Task) -> None:
        self.task = task
        self.networks = [module.eval().to("meta") for module in modules]
        self._trainees = LocalNetworks([copy.deepcopy(module) for module in self.networks], trainable, task)
        self._layouts = [
            {name: (tuple(tensor.shape), torch.empty(0, dtype=tensor.dtype).numpy().dtype) for name, tensor in each}
            for each in (module.state_dict().items() for module in self.networks)
        ]

    @classmethod
    def build(cls, description: Description, trust: Trust) -> TorchClient:
        """Build the networks of a dictionary; architectures outside of the zoo must be trusted."""
        modules = [build_skeleton(model.architecture, model.options, trust) for model in description.models]
        return cls(modules, [model.trainable for model in description.models], description.task)

    def layout(self, model: int) -> Layout:
        return self._layouts[model]

    def hold(self, model: int, tensors: Arrays) -> None:
        network = self.networks[model]
        network.load_state_dict(_tensors(tensors), strict=False, assign=True)
        network.requires_grad_(False)

    def release(self, model: int) -> None:
        self.networks[model].to("meta")

    def outputs(self, model: int, x: AnyArray, tensors: Arrays | None = None) -> AnyArray:
        with torch.inference_mode():
            inputs = torch.from_numpy(x)
            if tensors is not None:
                return _array(self._trainees.outputs(model, _tensors(tensors), inputs))
            return _array(self.networks[model](inputs))

    def losses(self, outputs: AnyArray, y: AnyArray) -> AnyArray:
        return _array(sample_losses(torch.from_numpy(outputs), torch.from_numpy(y), self.task))

    def adapted(self, model: int, tensors: Arrays, x: AnyArray, y: AnyArray, rate: float) -> Arrays:
        own = _tensors(tensors)
        return _arrays(self._trainees.adapted(model, own, torch.from_numpy(x), torch.from_numpy(y), rate))

    def residuals(
        self,
        tensors: Mapping[int, Arrays],
        x: AnyArray,
        y: AnyArray,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> AnyArray:
        held = {model: _tensors(each) for model, each in tensors.items()}
        batch = torch.from_numpy(x), torch.from_numpy(y)
        return _array(self._trainees.residuals(held, *batch, prediction_weights, offset))

    def update(
        self,
        model: int,
        tensors: Arrays,
        x: AnyArray,
        y: AnyArray,
        weights: Floats,
        update_weight: float,
        local: LocalUpdate,
        residuals: AnyArray | None = None,
        offset: Floats | None = None,
    ) -> Arrays:
        slopes = None if residuals is None else torch.from_numpy(residuals)
        own, inputs, targets = _tensors(tensors), torch.from_numpy(x), torch.from_numpy(y)
        found = self._trainees.update(model, own, inputs, targets, weights, update_weight, local, slopes, offset)
        return _arrays(found)

    def settle(self) -> None:
        """Nothing: PyTorch takes several times as much memory as could be given back."""


def _tensors(arrays: Arrays) -> Tensors:
    """Tensors that share the memory of arrays."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _array(tensor: torch.Tensor) -> AnyArray:
    array: AnyArray = tensor.numpy()
    return array


def _arrays(tensors: Tensors) -> Arrays:
    return {name: _array(tensor) for name, tensor in tensors.items()}
