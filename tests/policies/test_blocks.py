"""Work on clients in blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ofms.core.layers import Layers
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.policies.blocks import blocks, in_blocks


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
def test_blocks_change_nothing(clients: int, most: int) -> None:
    state = state_of(clients)
    made, expected = in_blocks(state, clients, most, work), work(state, slice(0, clients))
    assert made.count == 1
    assert made.shared.tolist() == expected.shared.tolist()
    assert made.same.tolist() == expected.same.tolist()
    assert made.inner.values.tolist() == expected.inner.values.tolist()
    assert made.inner.layers.whole.tolist() == expected.inner.layers.whole.tolist()
    assert state.inner.values.tolist() == state_of(clients).inner.values.tolist(), "the state is not modified"


def test_what_no_block_changed_is_shared() -> None:
    state = state_of(7)
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
