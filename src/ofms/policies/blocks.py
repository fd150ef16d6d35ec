"""Work on many clients in blocks: the intermediate results of a block fit the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ofms.core.tasks import done
from ofms.core.typing import AnyArray, Integers

T = TypeVar("T")
R = TypeVar("R")

_threads = 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Until the context ends, so many threads of this process work on blocks; results do not depend on it."""
    global _threads
    before, _threads = _threads, count
    try:
        yield
    finally:
        _threads = before


def in_blocks(state: T, clients: int, most: int, work: Callable[[T, slice | Integers], T]) -> T:
    """Apply `work` to the state of at most so many clients at a time.

    The first axis of the state's arrays are the clients; where it has length 1, all clients share the array. The result
    depends neither on the blocks nor on threads. It shares with the state those arrays that no block changed.
    """
    if clients == 1:
        # NumPy adds in another order along an axis that is alone: a device gets the bits of a simulation as one of two.
        twice = np.zeros(2, dtype=np.int64)
        alone: T = _rows(work(_rows(state, twice, shared=0), twice), slice(0, 1))
        return alone
    if clients <= most:
        return work(state, slice(0, clients))
    before, joined, last = _arrays(state), list[_Joined](), state

    def work_on(block: slice) -> _Part:
        rows = _rows(state, block)
        unchanged = {id(array): whole for array, whole in zip(_arrays(rows), before, strict=True)}
        made = work(rows, block)
        arrays = _arrays(made)
        return _Part(block, made, arrays, [unchanged.get(id(array)) for array in arrays])

    with _starter() as start:
        written = []
        # Parts come in the order of their blocks: the first one that changes an array decides its order in memory.
        for part in _ahead(start, work_on, blocks(clients, most)):
            joined, last = joined or [_Joined(clients) for _ in part.arrays], part.state
            for whole, array, same in zip(joined, part.arrays, part.unchanged, strict=True):
                whole.put(part.block, array, same)
            written.append(start(partial(_write, joined, part)))
        for each in written:
            each.result()
    arrays = iter(joined)
    made: T = _changed(last, lambda _: next(arrays).array)
    return made


def for_each_block(clients: int, most: int, work: Callable[[slice], None]) -> None:
    """Apply `work`, which writes its results itself, to at most so many clients at a time."""
    with _starter() as start:
        for started in [start(partial(work, block)) for block in blocks(clients, most)]:
            started.result()


def blocks(clients: int, most: int) -> Iterator[slice]:
    """Blocks of at most so many clients, or one more: none is of a client alone, whose bits would differ."""
    return (slice(first, stop) for first, stop in pairwise([*range(0, max(1, clients - 1), most), clients]))


class _Part(NamedTuple):
    """What the work on a block made: a state, its arrays, and for each the array before of which it is a part."""

    block: slice
    state: Any
    arrays: list[AnyArray]
    unchanged: list[AnyArray | None]


class _Joined:
    """An array of all clients, from blocks; one of those before if no block changed it."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._before: AnyArray | None = None
        self._unchanged: list[slice] = []
        self.made: AnyArray | None = None

    @property
    def array(self) -> AnyArray:
        array = self._before if self.made is None else self.made
        assert array is not None
        return array

    def put(self, block: slice, part: AnyArray, before: AnyArray | None) -> None:
        """The array of a block, which is still to be written; `before`, if it is that part of an array before."""
        if self.made is None:
            if before is not None and (self._before is None or self._before is before):
                self._before = before
                self._unchanged.append(block)
                return
            self.made = self._allocated(part)

    def _allocated(self, part: AnyArray) -> AnyArray:
        if part.shape[0] == 1:
            return part
        # In the order of the block's array in memory.
        made = np.empty_like(part, shape=(self._clients, *part.shape[1:]))
        for block in self._unchanged:
            made[block] = self.array[block]
        return made


def _write(joined: list[_Joined], part: _Part) -> None:
    """Copy a block's arrays into those of all clients; a second time if they were copied as unchanged."""
    for whole, array in zip(joined, part.arrays, strict=True):
        if whole.made is not None and whole.made.shape[0] > 1:
            whole.made[part.block] = array


@contextmanager
def _starter() -> Iterator[Callable[[Callable[[], R]], Future[R]]]:
    """Starts tasks on the threads; with one thread, each is done when it is started."""
    if _threads == 1:
        yield done
        return
    with ThreadPoolExecutor(_threads) as pool:
        try:
            # In a context like this one: how NumPy treats overflows belongs to it.
            yield lambda task: pool.submit(copy_context().run, task)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _ahead(
    start: Callable[[Callable[[], _Part]], Future[_Part]], work: Callable[[slice], _Part], items: Iterator[slice]
) -> Iterator[_Part]:
    """The results of work on items, in their order; the threads are as many items ahead as keep them busy."""
    waiting, ahead = deque[Future[_Part]](), 2 * _threads if _threads > 1 else 0
    for item in items:
        waiting.append(start(partial(work, item)))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


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
