"""Draws depend on seed, purpose, exchange and client alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.draws import Draws, Purpose

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.integers(0, 10**6), st.sampled_from(Purpose), st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_a_device_and_a_simulation_get_the_same_number(
    seed: int, exchange: int, purpose: Purpose, clients: list[int]
) -> None:
    draws = Draws(seed, exchange)
    row = draws.uniform(purpose, np.arange(5001))
    assert draws.uniform(purpose, np.array(clients)).tolist() == row[clients].tolist()
    for client in clients:
        assert draws.uniform(purpose, np.array([client]))[0] == row[client]


@given(seeds, st.integers(1, 300), st.integers(1, 300))
def test_more_clients_do_not_change_the_draws_of_others(seed: int, few: int, more: int) -> None:
    draws = Draws(seed, 0)
    larger = draws.uniform(Purpose.MODEL, np.arange(few + more))
    assert draws.uniform(Purpose.MODEL, np.arange(few)).tolist() == larger[:few].tolist()


def test_draws_come_from_philox_with_the_documented_key_and_counter() -> None:
    counter = np.array([0, 0, 5, 0], dtype=np.uint64)
    philox = np.random.Philox(key=np.array([42, Purpose.CLUSTER], dtype=np.uint64), counter=counter)
    expected = np.random.Generator(philox).random(10)
    assert Draws(42, 5).uniform(Purpose.CLUSTER, np.arange(10)).tolist() == expected.tolist()


def test_purposes_exchanges_and_seeds_have_different_draws() -> None:
    rows = [
        Draws(seed, exchange).uniform(purpose, np.arange(8)).tolist()
        for seed in (0, 1)
        for exchange in (0, 1)
        for purpose in Purpose
    ]
    assert len({tuple(row) for row in rows}) == len(rows)


def test_draws_of_the_run_are_those_of_its_first_exchange() -> None:
    """Subsets that are drawn once stay those of published figures."""
    clients = np.array([3, 8, 1])
    for exchange in (0, 1, 77):
        draws = Draws(5, exchange).of(clients).of_the_run()
        assert draws.table(Purpose.SUBSET, 4).tolist() == Draws(5, 0).table(Purpose.SUBSET, clients, 4).tolist()


def philox(seed: int, purpose: Purpose, counter: list[int]) -> np.random.Generator:
    """NumPy's generator with key (seed, purpose) and a counter, as the documentation says."""
    key = np.array([seed, purpose], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array(counter, dtype=np.uint64)))


@pytest.mark.parametrize(
    "clients",
    [[3], [0], [998], [5, 6, 7, 8], [7, 6, 5], [0, 5, 2], [900, 3, 17, 3], [0, 8], [0, 7], [2, 3, 4, 6], [1, 3, 2, 4]],
)
def test_any_clients_get_their_numbers_of_the_row(clients: list[int]) -> None:
    """Alone, in a range, in any order, close to each other or far apart; also with the largest seed and purposes."""
    seed = 2**63 - 1
    for column in (0, 2):
        row = philox(seed, Purpose.MODEL, [0, column, 9, 0]).random(1000)
        found = Draws(seed, 9).uniform(Purpose.MODEL, np.array(clients), column)
        assert found.tolist() == row[clients].tolist()
    assert Draws(seed, 9).uniform(Purpose.MODEL, [], 1).tolist() == []  # type: ignore[arg-type]


def test_the_servers_number_is_the_first_of_its_purpose() -> None:
    assert Draws(4, 6).single(Purpose.CLUSTER) == philox(4, Purpose.CLUSTER, [0, 0, 6, 0]).random()


def test_normal_numbers_of_a_client_are_its_own() -> None:
    found = Draws(2**63 - 1, 6).normal(Purpose.MODEL, 5, 3, 7)
    assert found.tolist() == philox(2**63 - 1, Purpose.MODEL, [0, 3, 6, 6]).standard_normal(7).tolist()
