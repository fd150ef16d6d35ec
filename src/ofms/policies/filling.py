"""Fill budgets with models in an order of preference, for many clients at once; arrays are [K, N], clients last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers

# After so many models, whether any room is left.
_STEPS = 4


@dataclass(frozen=True, eq=False)
class Order:
    """[K, N] for each client, models in order: where they are in flat [K, N] arrays; and [K] the models' costs."""

    place: Integers
    costs: Integers

    @classmethod
    def falling(cls, weights: Floats, costs: Integers) -> Order:
        """By falling weights in [0, 2); models of equal weight by number.

        Weights that differ in the last few bits alone may count as equal: their place belongs to the model's number.
        """
        # The bits of positive numbers are in their order; those of weights in [0, 2) begin with two zeros.
        keys = np.array(weights.T, order="C").view(np.uint64)
        np.left_shift(np.invert(keys, out=keys), np.uint64(2), out=keys)
        return cls._by(keys, costs)

    @classmethod
    def rising(cls, numbers: Integers, costs: Integers) -> Order:
        """By rising numbers of at least -1; equal ones by the model's number."""
        keys = np.array(numbers.T + 1, dtype=np.uint64, order="C")
        keys <<= np.uint64(_bits(len(numbers)))
        return cls._by(keys, costs)

    @classmethod
    def _by(cls, keys: AnyArray, costs: Integers) -> Order:
        """By [N, K] keys whose last bits are replaced by the model's number: much faster than to sort indices."""
        clients, models = keys.shape
        number = np.uint64(2 ** _bits(models) - 1)
        keys &= ~number
        keys |= np.arange(models, dtype=np.uint64)
        keys.sort(axis=1)
        keys &= number
        place = np.ascontiguousarray(keys.T).view(np.int64)
        place *= clients
        place += np.arange(clients)
        return cls(place, costs)

    def of(self, values: AnyArray) -> AnyArray:
        """Values in order, of those by model."""
        return values.take(self.place)

    def back(self, values: AnyArray) -> AnyArray:
        """Values by model, of those in order."""
        made = np.empty(values.size, dtype=values.dtype)
        made[self.place] = values
        return made.reshape(values.shape)

    def costs_of(self, candidates: Flags) -> AnyArray:
        """Costs in order; for models that are no candidates, more than any budget."""
        # Half as many bits are twice as fast, and enough for most dictionaries.
        small = int(self.costs.sum()) < _never(np.dtype(np.uint32))
        costs = self.costs.astype(np.uint32 if small else np.uint64)
        return self.of(np.where(candidates, costs[:, None], _never(costs.dtype)))


def fill(costs: AnyArray, room: Integers, most: Integers | None = None) -> Flags:
    """The models, in order, that fit into the room left by those before them, at most so many."""
    models, clients = costs.shape
    never, tried = _never(costs.dtype), 0
    left, least = np.empty((models + 1, clients), dtype=costs.dtype), costs.min(initial=never)
    # All models together take less than `never`.
    left[0] = np.clip(room, 0, int(never) - 1)
    if most is not None:
        costs = costs.copy()
    for tried, (cost, before, after) in enumerate(zip(costs, left, left[1:], strict=False), 1):
        if most is not None:
            cost[most <= 0] = never
            most = most - (cost <= before)
        # Where it does not fit, the difference wraps around and is the larger one.
        np.subtract(before, cost, out=after)
        np.minimum(before, after, out=after)
        if tried % _STEPS == 0 and after.max(initial=0) < least:
            break
    chosen = np.zeros(costs.shape, dtype=np.bool_)
    np.less_equal(costs[:tried], left[:tried], out=chosen[:tried])
    return chosen


def storage(chosen: Flags, costs: Integers) -> Integers:
    """[N] the memory that models take."""
    total: Integers = np.einsum("k,kn->n", costs, chosen)
    return total


def _never(dtype: np.dtype[Any]) -> Any:
    """More than all models take together: a model of this cost is no candidate."""
    return dtype.type(2 ** (8 * dtype.itemsize - 2))


def _bits(models: int) -> int:
    """How many bits the numbers of models have."""
    return max(1, (models - 1).bit_length())
