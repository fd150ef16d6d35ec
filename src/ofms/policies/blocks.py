"""Work on many clients in blocks: the intermediate results of a block fit the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ofms.core.typing import AnyArray, Integers

T = TypeVar("T")


def in_blocks(state: T, clients: int, most: int, work: Callable[[T, slice | Integers], T]) -> T:
    """Apply `work` to the state of at most so many clients at a time.

    The first axis of the state's arrays are the clients; where it has length 1, all clients share the array. The result
    does not depend on the blocks. It shares with the state those arrays that no block changed.
    """
    if clients == 1:
        # NumPy adds in another order along an axis that is alone: a device gets the bits of a simulation as one of two.
        twice = np.zeros(2, dtype=np.int64)
        alone: T = _rows(work(_rows(state, twice, shared=0), twice), slice(0, 1))
        return alone
    if clients <= most:
        return work(state, slice(0, clients))
    before, joined, last = _arrays(state), list[_Joined](), state
    for block in blocks(clients, most):
        part = _rows(state, block)
        unchanged = {id(array): whole for array, whole in zip(_arrays(part), before, strict=True)}
        last = work(part, block)
        for place, array in enumerate(_arrays(last)):
            if place == len(joined):
                joined.append(_Joined(clients))
            joined[place].put(block, array, unchanged.get(id(array)))
    arrays = iter(joined)
    made: T = _changed(last, lambda _: next(arrays).array)
    return made


def blocks(clients: int, most: int) -> Iterator[slice]:
    """Blocks of at most so many clients, or one more: none is of a client alone, whose bits would differ."""
    return (slice(first, stop) for first, stop in pairwise([*range(0, max(1, clients - 1), most), clients]))


class _Joined:
    """An array of all clients, from blocks; one of those before if no block changed it."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._before: AnyArray | None = None
        self._made: AnyArray | None = None
        self._unchanged: list[slice] = []

    @property
    def array(self) -> AnyArray:
        array = self._before if self._made is None else self._made
        assert array is not None
        return array

    def put(self, block: slice, part: AnyArray, before: AnyArray | None) -> None:
        """The array of a block; `before`, if it is that part of an array before."""
        if self._made is None:
            if before is not None and (self._before is None or self._before is before):
                self._before = before
                self._unchanged.append(block)
                return
            self._made = self._allocated(part)
        if self._made.shape[0] > 1:
            self._made[block] = part

    def _allocated(self, part: AnyArray) -> AnyArray:
        if part.shape[0] == 1:
            return part
        # In the order of the block's array in memory.
        made = np.empty_like(part, shape=(self._clients, *part.shape[1:]))
        for block in self._unchanged:
            made[block] = self.array[block]
        return made


def _arrays(value: Any) -> list[AnyArray]:
    """The arrays of a record, and of records and tuples in it."""
    if isinstance(value, np.ndarray):
        return [value]
    parts = value if isinstance(value, tuple) else [getattr(value, name) for name in _names(value)]
    return [array for part in parts for array in _arrays(part)]


def _rows(value: Any, block: slice | Integers, shared: int = 1) -> Any:
    return _changed(value, lambda array: array[block] if array.shape[0] > shared else array)


def _changed(value: Any, change: Callable[[AnyArray], AnyArray]) -> Any:
    """A record with all of its arrays changed, in the order of `_arrays`."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(part, change) for part in value)
    names = _names(value)
    return type(value)(**{name: _changed(getattr(value, name), change) for name in names}) if names else value


def _names(value: Any) -> list[str]:
    """The fields of a record; none of any other value."""
    return list(getattr(value, "__dataclass_fields__", ()))
