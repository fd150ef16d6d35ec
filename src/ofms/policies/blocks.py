"""Work on many clients in blocks: the intermediate results of a block fit the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ofms.core.states import flatten
from ofms.core.typing import AnyArray, Integers

T = TypeVar("T")


def in_blocks(state: T, clients: int, most: int, work: Callable[[T, slice | Integers], T]) -> T:
    """Apply `work` to the state of at most so many clients at a time.

    The first axis of the state's arrays are the clients; where it has length 1, all clients share the array. The result
    does not depend on the blocks.
    """
    if clients == 1:
        # NumPy adds in another order along an axis that is alone: a device gets the bits of a simulation as one of two.
        twice = np.zeros(2, dtype=np.int64)
        alone: T = _rows(work(_rows(state, twice, shared=0), twice), slice(0, 1))
        return alone
    if clients <= most:
        return work(state, slice(0, clients))
    whole = flatten(state)[0]
    joined = {path: _Joined(array, clients) for path, array in whole.items()}
    last = state
    # No block is of one client, whose bits would differ.
    for first, stop in pairwise([*range(0, clients - 1, most), clients]):
        block = slice(first, stop)
        part = _rows(state, block)
        before, last = flatten(part)[0], work(part, block)
        for path, array in flatten(last)[0].items():
            joined[path].put(block, array, changed=array is not before[path])
    return _with(last, {path: each.array for path, each in joined.items()})


class _Joined:
    """An array of all clients, from blocks; the one before if no block changed it."""

    def __init__(self, before: AnyArray, clients: int) -> None:
        self.array, self._before, self._clients = before, before, clients
        self._unchanged: list[slice] = []

    def put(self, block: slice, part: AnyArray, *, changed: bool) -> None:
        if self.array is self._before:
            if not changed:
                self._unchanged.append(block)
                return
            self._allocate(part)
        if self.array.shape[0] > 1:
            self.array[block] = part

    def _allocate(self, part: AnyArray) -> None:
        if self._before.shape[0] == 1:
            self.array = part
            return
        self.array = np.empty((self._clients, *part.shape[1:]), dtype=part.dtype)
        for block in self._unchanged:
            self.array[block] = self._before[block]


def _rows(value: Any, block: slice | Integers, shared: int = 1) -> Any:
    if isinstance(value, np.ndarray):
        return value[block] if value.shape[0] > shared else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _rows(getattr(value, each.name), block, shared) for each in fields(value)})
    return value


def _with(record: T, arrays: dict[str, AnyArray], prefix: str = "") -> T:
    """The record with other arrays, by path."""
    changes: dict[str, Any] = {}
    for each in fields(record):  # type: ignore[arg-type]
        value, path = getattr(record, each.name), prefix + each.name
        if isinstance(value, np.ndarray):
            changes[each.name] = arrays[path]
        elif is_dataclass(value):
            changes[each.name] = _with(value, arrays, f"{path}.")
    made: T = replace(record, **changes)  # type: ignore[type-var]
    return made
