"""The minimum number of bins or clusters, by branch and bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.packing.first_fit import first_fit_decreasing
from ofms.core.packing.partition import cluster_counts
from ofms.core.typing import Integers

# The search recurses once per item; with more items than this, the initial bounds are returned.
_MOST_ITEMS_SEARCHED = 500


@dataclass(frozen=True)
class BinCount:
    """The minimum number of bins, or bounds on it if the search was cut short."""

    lower: int
    upper: int

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


def fewest_bins(sizes: Integers, capacity: int, *, effort: int = 20_000) -> BinCount:
    """The minimum number of bins that hold all items: exact, or bounds after `effort` search steps.

    Branch and bound over the items by decreasing size: an item goes into each open bin with a different residual
    capacity, or into a new bin. A branch is pruned if even full use of all residual capacity could not beat the
    best packing found. The initial bounds are Martello and Toth's L2 and first-fit decreasing.

    Examples
    --------
    >>> fewest_bins(np.array([44, 24, 24, 22, 21, 17, 8, 8, 6, 6]), 61)
    BinCount(lower=3, upper=3)
    >>> first_fit_decreasing(np.array([44, 24, 24, 22, 21, 17, 8, 8, 6, 6]), 61).count
    4

    References
    ----------
    S. Martello and P. Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990.
    """
    positive = np.asarray(sizes, dtype=np.int64)
    positive = positive[positive > 0]
    if positive.size == 0:
        return BinCount(0, 0)
    lower = _bin_lower_bound(positive, capacity)
    best = first_fit_decreasing(positive, capacity).count
    if lower == best or positive.size > _MOST_ITEMS_SEARCHED:
        return BinCount(lower, best)
    items = sorted(positive.tolist(), reverse=True)
    remaining = [0] * (len(items) + 1)
    for index in reversed(range(len(items))):
        remaining[index] = remaining[index + 1] + items[index]
    steps = 0

    def search(index: int, rooms: list[int]) -> bool:
        """Search below this node, improving `best`; whether the search was complete."""
        nonlocal best, steps
        if index == len(items):
            best = min(best, len(rooms))
            return True
        usable = sum(room for room in rooms if room >= items[-1])
        missing = remaining[index] - usable
        if len(rooms) + max(0, -(-missing // capacity)) >= best:
            return True
        steps += 1
        if steps > effort:
            return False
        size = items[index]
        tried = set()
        whole = True
        for position, room in sorted(enumerate(rooms), key=lambda entry: entry[1]):
            if room < size or room in tried:
                continue
            tried.add(room)
            rooms[position] -= size
            whole &= search(index + 1, rooms)
            rooms[position] += size
            if room == size or best == lower:
                return whole
        if len(rooms) + 1 < best:
            rooms.append(capacity - size)
            whole &= search(index + 1, rooms)
            rooms.pop()
        return whole

    complete = search(0, [])
    return BinCount(best if complete else lower, best)


def fewest_clusters(costs: Integers, budget: int, *, effort: int = 20_000) -> BinCount:
    """μ = max_j m*_j: the minimum number of clusters, maximised over the chosen model (before th:4).

    Exact, or bounds after `effort` search steps in total. Models of equal cost yield the same number, and only costs
    that could still raise the maximum are searched.

    >>> fewest_clusters(np.ones(20, dtype=np.int64), 5)
    BinCount(lower=5, upper=5)
    """
    costs = np.asarray(costs, dtype=np.int64)
    distinct, first = np.unique(costs, return_index=True)
    # Models that cost nothing need no cluster.
    counts = np.where(costs.sum() > costs, cluster_counts(costs, budget), 0)
    upper, lower = dict(zip(distinct.tolist(), counts[first].tolist(), strict=True)), 0
    # The largest models leave the least capacity, so they probably need the most clusters.
    falling = list(zip(distinct[::-1].tolist(), first[::-1].tolist(), strict=True))
    for cost, index in falling:
        if upper[cost] > lower:
            lower = max(lower, _bin_lower_bound(np.delete(costs, index), budget - cost))
    doubtful = [(cost, index) for cost, index in falling if upper[cost] > lower]
    for cost, index in doubtful if costs.size - 1 <= _MOST_ITEMS_SEARCHED else []:
        if upper[cost] > lower:
            count = fewest_bins(np.delete(costs, index), budget - cost, effort=effort // len(doubtful))
            upper[cost], lower = count.upper, max(lower, count.lower)
    return BinCount(lower, max(upper.values()))


def _bin_lower_bound(items: Integers, capacity: int) -> int:
    """Martello and Toth's L2: the maximum over thresholds of bins for large items plus overflow of small ones."""
    ascending = np.sort(items[items > 0])
    if ascending.size == 0:
        return 0
    sums = np.concatenate([[0], np.cumsum(ascending)])
    middle = int(np.searchsorted(ascending, capacity // 2, side="right"))
    thresholds = np.unique(np.concatenate([[0], ascending[:middle]]))
    # Items above capacity - threshold fill a bin; those between that and half the capacity get a bin each, whose free
    # capacity takes smaller items.
    large = np.searchsorted(ascending, capacity - thresholds, side="right")
    small = np.minimum(np.searchsorted(ascending, thresholds, side="left"), middle)
    halves = np.maximum(large - middle, 0)
    left = halves * capacity - (sums[np.maximum(large, middle)] - sums[middle])
    overflow = (sums[middle] - sums[small]) - left
    bound = (ascending.size - np.maximum(large, middle)) + halves + np.maximum(0, -(-overflow // capacity))
    return int(bound.max())
