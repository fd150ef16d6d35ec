"""Fill budgets with models in an order of preference, for many clients at once; arrays are [K, N], clients last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers

# More than any budget: a model of this cost is no candidate.
_NEVER = np.uint64(2**62)
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
        costs = self.costs.astype(np.uint64)[:, None]
        return self.of(np.where(candidates, costs, _NEVER))


def fill(costs: AnyArray, room: Integers, most: Integers | None = None) -> Flags:
    """The models, in order, that fit into the room left by those before them, at most so many."""
    models, clients = costs.shape
    left, least, tried = np.empty((models + 1, clients), dtype=np.uint64), costs.min(initial=_NEVER), 0
    left[0] = np.maximum(room, 0)
    if most is not None:
        costs = costs.copy()
    for tried, (cost, before, after) in enumerate(zip(costs, left, left[1:], strict=False), 1):
        if most is not None:
            cost[most <= 0] = _NEVER
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


def _bits(models: int) -> int:
    """How many bits the numbers of models have."""
    return max(1, (models - 1).bit_length())
