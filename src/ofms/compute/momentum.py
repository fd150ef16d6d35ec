"""The directions along which a server moves its models: its clients' summed updates, with momentum, or as FedAdam's.

References
----------
S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from ofms.compute.protocol import Tensors
from ofms.compute.updates import Updates, norm_of, wide
from ofms.core.typing import AnyArray, Floats
from ofms.core.usual_norms import UsualNorms

_NORMS, _SQUARES, _COUNTS = "norms.", "squares.", "counts"
# In units of the root mean square of a model's updates: parameters whose updates are much smaller move less.
_DAMPING = 1e-3


class Momentum:
    """The direction d of each model with a summed update u.

    With decay β, d ← β d + u; with β = 0 it is u itself. If a decay of squares is set, it is FedAdam's: the mean of
    updates with decay β over the root of the mean of their squares with the other decay, both corrected for their start
    at 0. `norms` are those of the updates that were aggregated robustly.
    """

    def __init__(self, decay: float, of_squares: float = 0.0) -> None:
        self.decay, self.of_squares, self.norms = decay, of_squares, UsualNorms()
        self._directions: Updates = {}
        self._squares: Updates = {}
        self._counts: dict[int, int] = {}

    def change(self, decay: float, of_squares: float) -> None:
        """Use other decays from now on."""
        self.decay, self.of_squares = decay, of_squares

    def add(self, updates: Updates) -> Updates:
        """The directions of the models that are updated."""
        if self.of_squares:
            return {model: self._adaptive(model, update) for model, update in updates.items()}
        if not self.decay:
            return updates
        for model, update in updates.items():
            before = self._directions.get(model)
            self._directions[model] = (
                update
                if before is None
                else {name: self.decay * before[name].to(part.device) + part for name, part in update.items()}
            )
        return {model: self._directions[model] for model in updates}

    def _adaptive(self, model: int, update: Tensors) -> Tensors:
        count = self._counts[model] = self._counts.get(model, 0) + 1
        means = self._means(self._directions, model, update, self.decay)
        squares = self._means(
            self._squares, model, {name: part.square() for name, part in update.items()}, self.of_squares
        )
        unbiased, unbiased_squares = 1 - self.decay**count, 1 - self.of_squares**count
        total = sum(float(wide(part).sum()) for part in squares.values()) / unbiased_squares
        damping = _DAMPING * math.sqrt(total / sum(part.numel() for part in squares.values()))
        if not 0 < damping < math.inf:
            return dict(update)
        return {
            name: (part / unbiased) / ((squares[name] / unbiased_squares).sqrt() + damping)
            for name, part in means.items()
        }

    def _means(self, kept: Updates, model: int, values: Tensors, decay: float) -> Tensors:
        before = kept.get(model)
        kept[model] = {
            name: (1 - decay) * part if before is None else decay * before[name].to(part.device) + (1 - decay) * part
            for name, part in values.items()
        }
        return kept[model]

    def forget(self, models: Iterable[int]) -> None:
        """Begin anew for models that were replaced."""
        for model in models:
            for kept in (self._directions, self._squares, self._counts):
                kept.pop(model, None)

    def to_arrays(self, prefix: str) -> dict[str, AnyArray]:
        """All state, as arrays."""
        arrays = {
            f"{prefix}{kind}{model}.{name}": tensor.cpu().numpy()
            for kind, kept in (("", self._directions), (_SQUARES, self._squares))
            for model, direction in kept.items()
            for name, tensor in direction.items()
        }
        if self._counts:
            arrays[f"{prefix}{_COUNTS}"] = np.array(sorted(self._counts.items()))
        return arrays | self.norms.to_arrays(f"{prefix}{_NORMS}")

    def load_arrays(self, arrays: Mapping[str, AnyArray], prefix: str) -> None:
        """The inverse of `to_arrays`."""
        self._directions, self._squares = {}, {}
        self._counts = {int(model): int(count) for model, count in arrays.get(f"{prefix}{_COUNTS}", ())}
        self.norms.load_arrays(arrays, f"{prefix}{_NORMS}")
        for key, array in arrays.items():
            if key.startswith(prefix) and not key.startswith((f"{prefix}{_NORMS}", f"{prefix}{_COUNTS}")):
                rest = key.removeprefix(prefix)
                kept = self._squares if rest.startswith(_SQUARES) else self._directions
                model, _, name = rest.removeprefix(_SQUARES).partition(".")
                kept.setdefault(int(model), {})[name] = torch.from_numpy(array.copy())


def may_overflow(sizes: tuple[Floats, Floats, Floats], step: Floats, models: Iterable[int]) -> list[int]:
    """The models whose parameters may not be finite after steps along directions of these sizes.

    No parameter exceeds the norm of all, so that few models ever need to be examined.
    """
    _, norms, parameters = sizes
    farthest = parameters + np.abs(step) * norms
    return [model for model in models if not farthest[model] < torch.finfo(torch.float32).max / 2]


def sizes_of(
    updates: Mapping[int, Tensors],
    directions: Mapping[int, Tensors],
    tensors: Sequence[Mapping[str, torch.Tensor]],
    trainable: Sequence[Sequence[str]],
) -> tuple[Floats, Floats, Floats]:
    """[K] ⟨u, d⟩ of summed updates and directions, ‖d‖, and the norm of the parameters; 0 without an update."""
    models = range(len(tensors))
    products = [_product(updates[model], directions[model]) if model in updates else 0.0 for model in models]
    norms = [norm_of(directions[model].values()) if model in updates else 0.0 for model in models]
    parameters = [norm_of(tensors[model][name] for name in trainable[model]) for model in models]
    return np.array(products), np.array(norms), np.array(parameters)


def _product(one: Tensors, other: Tensors) -> float:
    return float(torch.stack([(wide(part) * wide(other[name])).sum() for name, part in one.items()]).sum())
