"""The dictionary's networks, loaded onto a device; fully connected ones are stacked."""

from __future__ import annotations

import copy

import torch
from torch import nn

from ofms.compute.protocol import Tensors
from ofms.compute.stacked import Stack, is_stackable, stack_modules
from ofms.models.dictionary import Dictionary, Model
from ofms.models.speed import lay_channels_last


class Networks:
    """Copies of the modules, in evaluation mode; `single` are those in no stack."""

    def __init__(self, dictionary: Dictionary, dtype: torch.dtype, device: torch.device) -> None:
        self.names = [model.name for model in dictionary.models]
        self.values = [model.values for model in dictionary.models]
        self.trainable = [model.trainable for model in dictionary.models]
        self.modules = [_load(model, dtype, device) for model in dictionary.models]
        self.parameters = [dict(module.named_parameters()) for module in self.modules]
        self.stacks = _stacks(self.modules)
        self.single = sorted(set(range(len(self.modules))) - {model for stack in self.stacks for model in stack.models})

    def __len__(self) -> int:
        return len(self.modules)

    def leaves(self, model: int) -> list[torch.Tensor]:
        """The fine-tuned parameters of a model."""
        return [self.parameters[model][name] for name in self.trainable[model]]

    def state(self, model: int) -> Tensors:
        """A copy of a model's parameters and buffers, in main memory."""
        stored = self.modules[model].state_dict()
        return {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in stored.items()
            if not name.endswith("num_batches_tracked")
        }

    def load_state(self, model: int, tensors: Tensors) -> None:
        """Set a model's parameters and buffers, in place."""
        stored = self.modules[model].state_dict()
        with torch.no_grad():
            for name, tensor in tensors.items():
                stored[name].copy_(tensor)


def _load(model: Model, dtype: torch.dtype, device: torch.device) -> nn.Module:
    module = copy.deepcopy(model.module)
    module.load_state_dict(model.tensors, strict=False)
    module.to(device=device, dtype=dtype)
    lay_channels_last(module)
    module.eval()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in model.trainable)
    return module


def _stacks(modules: list[nn.Module]) -> list[Stack]:
    same_architecture: dict[str, list[int]] = {}
    for index, module in enumerate(modules):
        if is_stackable(module):
            same_architecture.setdefault(str(module), []).append(index)
    return [
        stack_modules(
            models,
            [module for module in (modules[index] for index in models) if isinstance(module, nn.Sequential)],
        )
        for models in same_architecture.values()
        if len(models) > 1
    ]
