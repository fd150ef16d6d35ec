"""The directions along which a server moves its models: its clients' summed updates, with momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from ofms.compute.protocol import Tensors
from ofms.compute.updates import Updates, norm_of, wide
from ofms.core.typing import AnyArray, Floats
from ofms.core.usual_norms import UsualNorms

_NORMS = "norms."


class Momentum:
    """d ← β d + u for each model with a summed update u; with decay β = 0 the direction d is u itself.

    `norms` are those of the updates that were aggregated robustly.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.norms = decay, UsualNorms()
        self._directions: Updates = {}

    def add(self, updates: Updates) -> Updates:
        """The directions of the models that are updated."""
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

    def forget(self, models: Iterable[int]) -> None:
        """Begin anew for models that were replaced."""
        for model in models:
            self._directions.pop(model, None)

    def to_arrays(self, prefix: str) -> dict[str, AnyArray]:
        """All state, as arrays."""
        directions = {
            f"{prefix}{model}.{name}": tensor.cpu().numpy()
            for model, direction in self._directions.items()
            for name, tensor in direction.items()
        }
        return directions | self.norms.to_arrays(f"{prefix}{_NORMS}")

    def load_arrays(self, arrays: Mapping[str, AnyArray], prefix: str) -> None:
        """The inverse of `to_arrays`."""
        self._directions = {}
        self.norms.load_arrays(arrays, f"{prefix}{_NORMS}")
        for key, array in arrays.items():
            if key.startswith(prefix) and not key.startswith(f"{prefix}{_NORMS}"):
                model, _, name = key.removeprefix(prefix).partition(".")
                self._directions.setdefault(int(model), {})[name] = torch.from_numpy(array.copy())


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
