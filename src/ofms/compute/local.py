"""One client's networks: outputs, local training, updates to upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from ofms.compute.tasks import sample_losses
from ofms.core.pooling import Pool, pool_gradient, poolable, within_range
from ofms.core.typing import Floats
from ofms.models.dictionary import Task
from ofms.policies.local_updates import Adapted, GradientStep, LocalUpdate

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class LocalNetworks:
    """Networks by model; `trainable` names the fine-tuned parameters. Parameters are passed to every call."""

    networks: Sequence[nn.Module]
    trainable: Sequence[tuple[str, ...]]
    task: Task

    def outputs(self, model: int, tensors: Tensors, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(self.networks[model], tensors, (x,))
        return outputs

    def adapted(self, model: int, tensors: Tensors, x: torch.Tensor, y: torch.Tensor, rate: float) -> Tensors:
        """All tensors, the trainable ones after one gradient step on some samples."""
        return tensors | self._step(model, tensors, self._start(model, tensors), x, y, rate)

    def residuals(
        self, tensors: Mapping[int, Tensors], x: torch.Tensor, y: torch.Tensor, prediction_weights: Floats
    ) -> torch.Tensor:
        """[n, C] the gradient of the loss of the pool of held models, in its outputs."""
        pool: Pool | None = None
        everybody = np.zeros(1, dtype=np.int64)
        with torch.no_grad():
            for model in np.flatnonzero(prediction_weights).tolist():
                part = poolable(within_range(self.outputs(model, tensors[model], x).numpy()))[None]
                pool = pool or Pool(part.shape)
                pool.add(everybody, prediction_weights[model : model + 1], part)
        value = np.zeros((0, 1)) if pool is None else pool.value()[0]
        return torch.from_numpy(pool_gradient(value, y.numpy())).to(x)

    def update(
        self,
        model: int,
        tensors: Tensors,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: Floats,
        update_weight: float,
        local: LocalUpdate,
        residuals: torch.Tensor | None = None,
    ) -> Tensors:
        """The update to upload: a weighted gradient step, or the weighted result of local training.

        `residuals` [n, C] are the gradients in the outputs, instead of those of the model's own loss.
        """
        start = self._start(model, tensors)
        if isinstance(local, GradientStep):
            sample_weights = torch.from_numpy(update_weight * weights).to(x)
            gradients = self._gradient(model, tensors, start, x, y, sample_weights, residuals)
            return {name: -local.rate * gradient for name, gradient in gradients.items()}
        current = start
        for _ in range(local.epochs):
            for xs, ys in zip(x.split(local.batch_size), y.split(local.batch_size), strict=True):
                if isinstance(local, Adapted):
                    half = len(xs) // 2
                    adapted = current
                    if half:
                        adapted = self._step(model, tensors, current, xs[:half], ys[:half], local.adaptation_rate)
                    gradients = self._gradient(model, tensors, adapted, xs[half:], ys[half:])
                    current = {name: tensor - local.rate * gradients[name] for name, tensor in current.items()}
                else:
                    current = self._step(model, tensors, current, xs, ys, local.rate)
        return {name: update_weight * (current[name] - start[name]) for name in start}

    def _start(self, model: int, tensors: Tensors) -> Tensors:
        return {name: tensors[name] for name in self.trainable[model]}

    def _step(
        self, model: int, tensors: Tensors, parameters: Tensors, x: torch.Tensor, y: torch.Tensor, rate: float
    ) -> Tensors:
        gradients = self._gradient(model, tensors, parameters, x, y)
        return {name: tensor - rate * gradients[name] for name, tensor in parameters.items()}

    def _gradient(
        self,
        model: int,
        tensors: Tensors,
        parameters: Tensors,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor | None = None,
        residuals: torch.Tensor | None = None,
    ) -> Tensors:
        """The gradient of the weighted sum of the samples' losses, or of their mean if there are no weights."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        outputs = self.outputs(model, tensors | leaves, x)
        if residuals is not None and not bool(torch.isfinite(outputs).all()):
            return {name: torch.full_like(tensor, torch.nan) for name, tensor in leaves.items()}
        losses = sample_losses(outputs, y, self.task) if residuals is None else (outputs * residuals).sum(dim=1)
        loss = losses.mean() if weights is None else (losses * weights).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))
