"""One client's networks in PyTorch: outputs, local training, updates to upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from ofms.compute.local_training import LocalTraining, pool_residuals
from ofms.compute.tasks import sample_losses, shifted
from ofms.core.typing import Floats
from ofms.models.index import Task

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class LocalNetworks(LocalTraining):
    """Networks by model; `trainable` names the fine-tuned parameters. Parameters are passed to every call."""

    networks: Sequence[nn.Module]
    trainable: Sequence[tuple[str, ...]]
    task: Task

    def outputs(self, model: int, tensors: Tensors, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(self.networks[model], tensors, (x,))
        return outputs

    def residuals(
        self,
        tensors: Mapping[int, Tensors],
        x: torch.Tensor,
        y: torch.Tensor,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> torch.Tensor:
        """[n, C] the gradient of the loss of the pool of held models, with [C] `offset`, in its outputs."""
        with torch.no_grad():
            outputs = (
                (prediction_weights[model], self.outputs(model, tensors[model], x).numpy())
                for model in np.flatnonzero(prediction_weights).tolist()
            )
            return torch.from_numpy(pool_residuals(outputs, y.numpy(), offset)).to(x)

    def gradient(
        self,
        model: int,
        tensors: Tensors,
        parameters: Tensors,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: Floats | None = None,
        residuals: torch.Tensor | None = None,
        offset: Floats | None = None,
    ) -> Tensors:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        outputs = self.outputs(model, tensors | leaves, x)
        if residuals is not None and not bool(torch.isfinite(outputs).all()):
            return {name: torch.full_like(tensor, torch.nan) for name, tensor in leaves.items()}
        if residuals is None:
            losses = sample_losses(
                shifted(outputs, None if offset is None else torch.from_numpy(offset).to(x)), y, self.task
            )
        else:
            losses = (outputs * residuals).sum(dim=1)
        loss = losses.mean() if weights is None else (losses * torch.from_numpy(weights).to(x)).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))
