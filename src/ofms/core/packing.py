"""Packing into as few bins as possible: models into clusters, clients into upload groups.

Sizes and capacities are whole bytes, so every machine packs alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core.typing import Integers

# The search recurses once an item; beyond this, the bounds stand as they are.
_MOST_ITEMS_SEARCHED = 500


@dataclass(frozen=True)
class Packing:
    """Which bin every item went into, and how many bins there are."""

    bin: Integers
    count: int


def first_fit_decreasing(sizes: Integers, capacity: int) -> Packing:
    """Pack items into bins by first-fit decreasing (alg:1, corrected).

    Items are taken by decreasing size, ties by index, and each goes into the first bin that has room, else into a new
    one. A million items of few sizes cost little more than their sort; of many sizes, the time of a search tree.

    Parameters
    ----------
    sizes
        Sizes of the items, each between 0 and `capacity`.
    capacity
        Capacity of a bin.

    Examples
    --------
    >>> first_fit_decreasing(np.array([3, 5, 2, 4, 1]), 6).bin.tolist()
    [2, 0, 1, 1, 0]

    References
    ----------
    G. Dósa, "The tight bound of first fit decreasing bin-packing algorithm is FFD(I) ≤ 11/9 OPT(I) + 6/9",
    ESCAPE 2007.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    if sizes.size == 0:
        return Packing(sizes, 0)
    if sizes.min() < 0 or sizes.max() > capacity:
        raise ValueError(f"sizes must lie in [0, {capacity}], got [{sizes.min()}, {sizes.max()}]")
    order = np.argsort(-sizes, kind="stable")
    descending = sizes[order]
    distinct = 1 + int(np.count_nonzero(np.diff(descending)))
    # Any two bins hold more than one capacity together, so there are at most this many.
    most_bins = min(sizes.size, 2 * int(sizes.sum()) // max(1, capacity) + 1)
    # Measured: a pass over b bins takes about as long as 8 + b/200 descents in the tree.
    by_size = distinct * (8 + most_bins / 200) < sizes.size
    bins, count = (_place_by_size if by_size else _place_one_by_one)(descending, capacity, most_bins)
    bin_of = np.empty(sizes.size, dtype=np.int64)
    bin_of[order] = bins
    return Packing(bin_of, count)


def _place_by_size(descending: Integers, capacity: int, most_bins: int) -> tuple[Integers, int]:
    """First fit, all items of one size at a time.

    Items of one size come one after the other, and the first bin with room takes as many of them as it can before the
    next one gets any: one pass over the bins that still have room places them all.
    """
    bins = np.empty(descending.size, dtype=np.int64)
    starts = np.flatnonzero(np.diff(descending, prepend=-1))
    stops = np.append(starts[1:], descending.size)
    smallest = int(descending[-1])
    open_bins = np.zeros(0, dtype=np.int64)
    room = np.zeros(0, dtype=np.int64)
    used = 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        size, count = int(descending[start]), stop - start
        fitting = room // size if size else np.full(room.size, count)
        taken = np.diff(np.minimum(np.cumsum(fitting), count), prepend=0)
        into_open = int(taken.sum())
        bins[start : start + into_open] = np.repeat(open_bins, taken)
        room = room - taken * size
        left = count - into_open
        if left:
            per_bin = capacity // size if size else left
            new = -(-left // per_bin)
            bins[start + into_open : stop] = used + np.arange(left) // per_bin
            fill = np.full(new, per_bin, dtype=np.int64)
            fill[-1] = left - (new - 1) * per_bin
            open_bins = np.concatenate([open_bins, used + np.arange(new)])
            room = np.concatenate([room, capacity - fill * size])
            used += new
        usable = room >= smallest
        open_bins, room = open_bins[usable], room[usable]
    return bins, used


def _place_one_by_one(descending: Integers, capacity: int, most_bins: int) -> tuple[Integers, int]:
    """First fit by a tree over the bins whose nodes know the largest room below them.

    Bins that are not open yet have all their room, so the first bin with room may be a new one.
    """
    leaves = 1 << (most_bins - 1).bit_length()
    room = [capacity] * (2 * leaves)
    bins = []
    for size in descending.tolist():
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < size:
                node += 1
        bins.append(node - leaves)
        room[node] -= size
        while node > 1:
            node //= 2
            left, right = room[2 * node], room[2 * node + 1]
            room[node] = left if left > right else right
    return np.array(bins, dtype=np.int64), max(bins) + 1


@dataclass(frozen=True)
class BinCount:
    """The least number of bins, or honest bounds on it where the search was cut short."""

    lower: int
    upper: int

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


def fewest_bins(sizes: Integers, capacity: int, *, effort: int = 20_000) -> BinCount:
    """The least number of bins that hold all items: exact, or bounds after `effort` search steps.

    Branch and bound over items by decreasing size: an item goes into each open bin of a different residual
    capacity, or into a new one; a branch ends when even filling all residual room perfectly cannot beat the
    best packing found. The bounds it starts from are Martello and Toth's L2 and first-fit decreasing.

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
        """Whether the search below this node was complete; improves `best` on the way."""
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


def _bin_lower_bound(items: Integers, capacity: int) -> int:
    """Martello and Toth's L2: for every threshold, items too large to share a bin, and the room they leave."""
    ascending = np.sort(items)
    sums = np.concatenate([[0], np.cumsum(ascending)])
    middle = int(np.searchsorted(ascending, capacity // 2, side="right"))
    thresholds = np.unique(np.concatenate([[0], ascending[:middle]]))
    # Those above capacity - threshold are alone; those between are halves; small ones fill what halves leave.
    large = np.searchsorted(ascending, capacity - thresholds, side="right")
    small = np.minimum(np.searchsorted(ascending, thresholds, side="left"), middle)
    halves = np.maximum(large - middle, 0)
    left = halves * capacity - (sums[np.maximum(large, middle)] - sums[middle])
    overflow = (sums[middle] - sums[small]) - left
    bound = (items.size - np.maximum(large, middle)) + halves + np.maximum(0, -(-overflow // capacity))
    return int(bound.max())


@dataclass(frozen=True)
class PartitionTable:
    """The clusters of every (budget, chosen model).

    Costs and budgets are fixed and first-fit decreasing is deterministic, so the clusters that a client would
    draw from are known before the first round.

    Attributes
    ----------
    kind
        [N] which of the distinct budgets a client has.
    budgets
        [G] the distinct budgets, ascending.
    cluster
        [G, K, K] `cluster[g, j, k]`: the cluster of model k when model j is chosen; -1 for k = j.
    clusters
        [G, K] the number of clusters m_j when model j is chosen.
    """

    kind: Integers
    budgets: Integers
    cluster: Integers
    clusters: Integers

    def rows(self, clients: slice) -> PartitionTable:
        """The table for some of the clients."""
        return replace(self, kind=self.kind[clients])


def partition_models(costs: Integers, budgets: Integers) -> PartitionTable:
    """Partition the models for every distinct budget and every chosen model (alg:6, step 6).

    Examples
    --------
    >>> table = partition_models(np.array([2, 1, 1]), np.array([3, 4, 3]))
    >>> table.cluster[table.kind[1], 0].tolist(), table.clusters[table.kind[1]].tolist()
    ([-1, 0, 0], [1, 1, 1])
    >>> table.clusters[table.kind[0]].tolist()
    [2, 2, 2]
    """
    costs = np.asarray(costs, dtype=np.int64)
    distinct, kind = np.unique(np.asarray(budgets, dtype=np.int64), return_inverse=True)
    models = costs.size
    cluster = np.full((distinct.size, models, models), -1, dtype=np.int64)
    clusters = np.zeros((distinct.size, models), dtype=np.int64)
    for row, budget in enumerate(distinct.tolist()):
        for chosen in range(models):
            others = np.delete(np.arange(models), chosen)
            packing = first_fit_decreasing(costs[others], budget - int(costs[chosen]))
            cluster[row, chosen, others] = packing.bin
            clusters[row, chosen] = packing.count
    return PartitionTable(kind.astype(np.int64), distinct, cluster, clusters)


def fewest_clusters(costs: Integers, budget: int, *, effort: int = 20_000) -> BinCount:
    """μ = max_j m*_j: the largest, over the chosen model, of the least numbers of clusters (before th:4).

    Exact, or bounds after `effort` search steps in all. Models of one cost give one number, and only those that could
    still raise the maximum are searched.

    >>> fewest_clusters(np.ones(20, dtype=np.int64), 5)
    BinCount(lower=5, upper=5)
    """
    costs = np.asarray(costs, dtype=np.int64)
    distinct, first = np.unique(costs, return_index=True)
    others = {cost: np.delete(costs, index) for cost, index in zip(distinct.tolist(), first.tolist(), strict=True)}
    counts = {cost: fewest_bins(rest, budget - cost, effort=0) for cost, rest in others.items()}
    lower = max(count.lower for count in counts.values())
    doubtful = [cost for cost, count in counts.items() if count.upper > lower]
    # The largest models leave the least room, so they are likely to need the most clusters.
    for cost in sorted(doubtful, reverse=True):
        if counts[cost].upper > lower:
            counts[cost] = fewest_bins(others[cost], budget - cost, effort=effort // len(doubtful))
            lower = max(lower, counts[cost].lower)
    return BinCount(lower, max(count.upper for count in counts.values()))


def smallest_budget(costs: Integers) -> int:
    """The least budget under (a2): the two largest models together.

    >>> smallest_budget(np.array([3, 9, 5]))
    14
    """
    return int(np.sort(costs)[-2:].sum())


def largest_cluster_upload(uploads: Integers, table: PartitionTable) -> int:
    """The largest upload over every set of models that a client could ever draw.

    >>> table = partition_models(np.array([2, 1, 1]), np.array([3]))
    >>> largest_cluster_upload(np.array([2, 1, 1]), table)
    3
    """
    largest = 0
    models = uploads.size
    for row in range(table.budgets.size):
        for chosen in range(models):
            others = np.delete(np.arange(models), chosen)
            sums = np.bincount(table.cluster[row, chosen, others], weights=uploads[others])
            largest = max(largest, int(uploads[chosen] + sums.max(initial=0)))
    return largest
