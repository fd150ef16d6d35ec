"""Small fleets that a policy is tried on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.policies.fleet import Fleet


def catalogue_of(costs: Sequence[int]) -> Catalogue:
    """Models `model0`, `model1`, … of these costs in bytes, to store and to upload."""
    storage = np.array(costs, dtype=np.int64)
    names = tuple(f"model{index}" for index in range(len(costs)))
    return Catalogue(names, storage, storage.copy(), np.zeros(len(costs), dtype=np.int64))


def fleet_of(
    costs: Sequence[int],
    budgets: Sequence[int],
    *,
    bandwidth: int | None = None,
    rounds: int | None = 50,
    interval: int = 1,
) -> Fleet:
    """A fleet with models of these costs and clients with these budgets, in bytes.

    >>> fleet = fleet_of([2, 3, 4], [7, 9], rounds=10)
    >>> len(fleet.catalogue), fleet.budgets.tolist(), fleet.bandwidth
    (3, [7, 9], 16)
    """
    bandwidth = sum(budgets) if bandwidth is None else bandwidth
    return Fleet(catalogue_of(costs), np.array(budgets, dtype=np.int64), bandwidth, Schedule(rounds, interval))


def random_fleet(random: np.random.Generator) -> Fleet:
    """Two to eight models, one to six clients with memory for at least the two largest, an interval of up to three."""
    costs = random.integers(1, 10, size=random.integers(2, 9)).tolist()
    least = 2 * max(costs)
    budgets = random.integers(least, least + 31, size=random.integers(1, 7)).tolist()
    bandwidth = max(budgets) + int(random.integers(0, 41))
    return fleet_of(costs, budgets, bandwidth=bandwidth, rounds=9, interval=int(random.integers(1, 4)))
