"""First-fit decreasing of all items but one, for each of them at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ofms.core.typing import AnyArray, Integers

# Pairs of packing and item that are worked on at once: 8 MB, because devices pack too.
_AT_ONCE = 2**22


class Packed(NamedTuple):
    """Of each packing, the number of bins and the largest weight of a bin."""

    bins: Integers
    heaviest: Integers


def pack_all_but_one(sizes: Integers, left_out: Integers, capacity: Integers, weights: Integers) -> Packed:
    """Pack items by first-fit decreasing, in packing j all but item `left_out[j]` into bins of `capacity[j]`.

    An item goes into the first bin that has room for it, so a bin takes of the items that no earlier bin took the
    largest, then the largest that still fits, and so on: bins can be filled one after the other. All packings take
    their next item at the same time. It takes the time of the items, times the packings, and memory for some of them
    at a time.

    Parameters
    ----------
    sizes, weights
        [K] of the items; no size exceeds a capacity.
    left_out, capacity
        [J] of the packings.

    Examples
    --------
    >>> pack_all_but_one(np.array([3, 5, 2, 4]), np.array([1, 3]), np.array([6, 5]), np.array([1, 1, 1, 1]))
    Packed(bins=array([2, 2]), heaviest=array([2, 2]))
    """
    order = np.argsort(-sizes, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    at_once = max(1, _AT_ONCE // (order.size + 1))
    parts = [
        _pack(sizes[order], place[left_out[first : first + at_once]], capacity[first : first + at_once], weights[order])
        for first in range(0, left_out.size, at_once)
    ]
    return Packed(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _pack(descending: Integers, left_out: Integers, capacity: Integers, weights: Integers) -> Packed:
    items, ascending, made = descending.size, descending[::-1].copy(), Packed(*np.zeros((2, left_out.size), np.int64))
    sizes, weights = np.append(descending, 0), np.append(weights, 0)
    packing = np.arange(left_out.size)
    # Where the first item from a place on is that no bin has taken; `items` if there is none.
    kind = np.int16 if items < 2**15 - 1 else np.int32
    remaining: AnyArray = np.tile(np.arange(items + 1, dtype=kind), (left_out.size, 1))
    remaining[packing, left_out] += 1
    flat, row = remaining.reshape(-1), packing * (items + 1)
    room, after, weight = capacity.copy(), np.zeros_like(packing), np.zeros_like(packing)
    for _ in range(items - 1):
        item = _first_from(flat, row, np.maximum(after, items - np.searchsorted(ascending, room, side="right")))
        full = np.flatnonzero(item == items)
        if full.size:
            made.bins[full] += 1
            made.heaviest[full] = np.maximum(made.heaviest[full], weight[full])
            item[full], room[full], weight[full] = _first_from(flat, row[full], np.zeros_like(full)), capacity[full], 0
        flat[row + item] = item + 1
        room -= sizes[item]
        weight += weights[item]
        after = item + 1
    last = items > 1
    return Packed(made.bins + last, np.maximum(made.heaviest, weight))


def _first_from(flat: AnyArray, row: Integers, start: Integers) -> Integers:
    """The first remaining item from a place on, for each packing."""
    places = row + start
    item = flat.take(places)
    moving = np.flatnonzero(item != start)
    while moving.size:
        further = flat.take(row[moving] + item[moving])
        ahead = np.flatnonzero(further != item[moving])
        item[moving] = further
        moving = moving[ahead]
    flat[places] = item
    return item.astype(np.int64)
