"""How one client fine-tunes, given a function that computes gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ofms.core.pooling import Pool, pool_gradient, poolable, with_offset, within_range
from ofms.core.typing import AnyArray, Floats
from ofms.policies.local_updates import Adapted, GradientStep, LocalUpdate

# Arrays of PyTorch or NumPy by name: what is done with them here means the same in both.
Arrays = dict[str, Any]


class LocalTraining(ABC):
    """Updates of models by gradients; `trainable` names the fine-tuned parameters of each."""

    trainable: Sequence[tuple[str, ...]]

    @abstractmethod
    def gradient(
        self,
        model: int,
        tensors: Arrays,
        parameters: Arrays,
        x: Any,
        y: Any,
        weights: Floats | None = None,
        residuals: Any = None,
        offset: Floats | None = None,
    ) -> Arrays:
        """The gradient in `parameters` of the weighted sum of the samples' losses, of their mean without weights.

        `residuals` [n, C] are the gradients in the outputs, instead of those of the model's own loss; losses are those
        of outputs to which [C] `offset` is added.
        """

    def adapted(self, model: int, tensors: Arrays, x: Any, y: Any, rate: float) -> Arrays:
        """All tensors, the trainable ones after one gradient step on some samples."""
        return tensors | self._step(model, tensors, self._start(model, tensors), x, y, rate)

    def update(
        self,
        model: int,
        tensors: Arrays,
        x: Any,
        y: Any,
        weights: Floats,
        update_weight: float,
        local: LocalUpdate,
        residuals: Any = None,
        offset: Floats | None = None,
    ) -> Arrays:
        """The update to upload: a weighted gradient step, or the weighted result of local training.

        `residuals` [n, C] are the gradients in the outputs, instead of those of the model's own loss; the loss of a
        gradient step is that of outputs to which [C] `offset` is added.
        """
        start = self._start(model, tensors)
        if isinstance(local, GradientStep):
            gradients = self.gradient(model, tensors, start, x, y, update_weight * weights, residuals, offset)
            # One by one: together, gradients and updates would take the memory of two models.
            return {name: -local.rate * gradients.pop(name) for name in list(gradients)}
        current = start
        for _ in range(local.epochs):
            for first in range(0, len(x), local.batch_size):
                xs, ys = x[first : first + local.batch_size], y[first : first + local.batch_size]
                if isinstance(local, Adapted):
                    half = len(xs) // 2
                    adapted = current
                    if half:
                        adapted = self._step(model, tensors, current, xs[:half], ys[:half], local.adaptation_rate)
                    gradients = self.gradient(model, tensors, adapted, xs[half:], ys[half:])
                    current = {name: tensor - local.rate * gradients[name] for name, tensor in current.items()}
                else:
                    current = self._step(model, tensors, current, xs, ys, local.rate)
        return {name: update_weight * (current[name] - start[name]) for name in start}

    def _start(self, model: int, tensors: Arrays) -> Arrays:
        return {name: tensors[name] for name in self.trainable[model]}

    def _step(self, model: int, tensors: Arrays, parameters: Arrays, x: Any, y: Any, rate: float) -> Arrays:
        gradients = self.gradient(model, tensors, parameters, x, y)
        return {name: tensor - rate * gradients[name] for name, tensor in parameters.items()}


def pool_residuals(
    outputs: Iterable[tuple[float, AnyArray]], targets: AnyArray, offset: Floats | None = None
) -> Floats:
    """[n, C] the gradient of the pool's loss in its outputs, from the weights and [n, C] outputs of its models.

    [C] `offset` is added to the pool.
    """
    pool: Pool | None = None
    everybody = np.zeros(1, dtype=np.int64)
    for weight, each in outputs:
        part = poolable(within_range(each))[None]
        pool = pool or Pool(part.shape)
        pool.add(everybody, np.array([weight]), part)
    if pool is None:
        return pool_gradient(np.zeros((0, 1)), targets)
    return pool_gradient(with_offset(pool.value(), None if offset is None else offset[None])[0], targets)
