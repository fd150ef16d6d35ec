"""Work on clients in blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ofms.core.layers import Layers
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.policies.blocks import blocks, in_blocks, threads


@dataclass(frozen=True, eq=False)
class Inner:
    values: Floats
    layers: Layers


@dataclass(frozen=True, eq=False)
class State:
    shared: AnyArray
    same: Floats
    inner: Inner
    count: int


def state_of(clients: int) -> State:
    values = np.arange(3.0 * clients).reshape(clients, 3)
    layers = Layers.of(np.zeros((clients, 0, 3))).append(values + 0.5)
    return State(np.arange(3)[None], -values, Inner(values, layers), 0)


def work(state: State, rows: slice | Integers) -> State:
    """Doubles values in part of the blocks, appends a layer, and leaves the rest as it is."""
    inner = replace(state.inner, layers=state.inner.layers.append(state.inner.values * 2))
    if (state.inner.values > 10).any():
        inner = replace(inner, values=np.where(inner.values > 10, 2 * inner.values, inner.values))
    return replace(state, inner=inner, count=state.count + 1)


@pytest.mark.parametrize("clients", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("most", [2, 3, 100])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_neither_blocks_nor_threads_change_anything(clients: int, most: int, workers: int) -> None:
    state = state_of(clients)
    with threads(workers):
        made = in_blocks(state, clients, most, work)
    expected = work(state, slice(0, clients))
    assert made.count == 1
    assert made.shared.tolist() == expected.shared.tolist()
    assert made.same.tolist() == expected.same.tolist()
    assert made.inner.values.tolist() == expected.inner.values.tolist()
    assert made.inner.layers.whole.tolist() == expected.inner.layers.whole.tolist()
    assert state.inner.values.tolist() == state_of(clients).inner.values.tolist(), "the state is not modified"


@pytest.mark.parametrize("workers", [1, 2])
def test_what_no_block_changed_is_shared(workers: int) -> None:
    state = state_of(7)
    with threads(workers):
        made = in_blocks(state, 7, 2, work)
    assert made.same is state.same
    assert made.shared is state.shared
    assert made.inner.layers.parts[0] is state.inner.layers.parts[0]


@pytest.mark.parametrize("clients", range(10))
def test_blocks_cover_all_clients_and_none_is_of_one(clients: int) -> None:
    parts = list(blocks(clients, 3))
    covered = [client for part in parts for client in range(part.start, part.stop)]
    assert covered == list(range(clients))
    assert clients < 2 or all(part.stop - part.start > 1 for part in parts)


def test_the_first_block_that_changes_an_array_decides_its_order_in_memory() -> None:
    """Sums depend on the order in memory, so it must not depend on which thread is first."""
    slow = threading.Event()

    def laid_out(state: State, rows: slice | Integers) -> State:
        assert isinstance(rows, slice)
        if rows.start == 0:
            return state
        if rows.start == 2:
            slow.wait(300)
            return replace(state, same=np.asfortranarray(2 * state.same))
        slow.set()
        return replace(state, same=np.ascontiguousarray(2 * state.same))

    with threads(3):
        made = in_blocks(state_of(6), 6, 2, laid_out)
    assert made.same.flags.f_contiguous
    assert made.same.tolist() == (state_of(6).same * np.array([[1], [1], [2], [2], [2], [2]])).tolist()


def test_an_error_in_a_block_ends_the_work_of_all() -> None:
    def broken(state: State, rows: slice | Integers) -> State:
        raise ValueError("broken")

    with threads(2), pytest.raises(ValueError, match="broken"):
        in_blocks(state_of(50), 50, 2, broken)


def test_threads_treat_overflows_as_their_caller_does() -> None:
    def overflows(state: State, rows: slice | Integers) -> State:
        return replace(state, same=np.exp(1000 - state.same))

    with threads(2), np.errstate(over="ignore"):
        assert np.isinf(in_blocks(state_of(6), 6, 2, overflows).same).all()
    with threads(2), np.errstate(over="raise"), pytest.raises(FloatingPointError):
        in_blocks(state_of(6), 6, 2, overflows)
