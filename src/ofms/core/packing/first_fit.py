"""First-fit decreasing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import Integers


@dataclass(frozen=True)
class Packing:
    """The bin of each item, and the number of bins."""

    bin: Integers
    count: int


def first_fit_decreasing(sizes: Integers, capacity: int) -> Packing:
    """Pack items into bins by first-fit decreasing (alg:1, corrected).

    Items are placed by decreasing size, ties by index, each into the first bin with enough capacity left, or into a new
    one. With few distinct sizes the time is that of sorting; with many, O(n log n) in a search tree.

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
    # Any two bins together hold more than one capacity, which limits their number.
    most_bins = min(sizes.size, 2 * int(sizes.sum()) // max(1, capacity) + 1)
    # Measured: a pass over b bins costs as much as 8 + b/200 descents in the tree.
    by_size = distinct * (8 + most_bins / 200) < sizes.size
    bins, count = (_place_by_size if by_size else _place_one_by_one)(descending, capacity, most_bins)
    bin_of = np.empty(sizes.size, dtype=np.int64)
    bin_of[order] = bins
    return Packing(bin_of, count)


def _place_by_size(descending: Integers, capacity: int, most_bins: int) -> tuple[Integers, int]:
    """First fit, one distinct size at a time.

    Items of equal size are adjacent, and the first bin with room takes as many as fit before the next bin gets any: one
    pass over the bins with room places them all.
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
    """First fit with a binary tree over the bins whose nodes store the largest room below them.

    Unused bins have full capacity, so the first bin with room may be a new one.
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
