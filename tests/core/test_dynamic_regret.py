"""Dynamic regret against hand-worked values and a slow oracle; recovery on hand-made sequences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.dynamic_regret import PhaseComparator, rounds_until_recovered


def comparator(losses: list[list[float]], changes: tuple[int, ...]) -> float:
    """The comparator of one client on [T, K] losses."""
    state = PhaseComparator.start(1, len(losses[0]))
    for step, row in enumerate(losses):
        if step in changes:
            state = state.next_phase()
        state = state.add(np.array([row]))
    return float(state.value[0])


def test_the_comparator_has_the_best_model_of_each_phase() -> None:
    losses = [[0.1, 0.5], [0.3, 0.4], [0.9, 0.2], [0.8, 0.0], [0.2, 0.6]]
    assert comparator(losses, ()) == pytest.approx(1.7)
    assert comparator(losses, (2,)) == pytest.approx(0.4 + 0.8)
    assert comparator(losses, (2, 4)) == pytest.approx(0.4 + 0.2 + 0.2)


@given(st.integers(1, 3), st.integers(2, 7), st.integers(0, 2**32), st.data())
def test_it_is_the_best_sequence_that_switches_only_at_changes(
    models: int, rounds: int, seed: int, data: st.DataObject
) -> None:
    losses = np.random.default_rng(seed).random((rounds, models))
    changes = tuple(sorted(data.draw(st.sets(st.integers(1, rounds - 1), max_size=3))))
    phases = np.searchsorted(changes, np.arange(rounds), side="right")
    sequences = itertools.product(range(models), repeat=len(changes) + 1)
    best = min(sum(losses[step, each[phases[step]]] for step in range(rounds)) for each in sequences)
    assert comparator(losses.tolist(), changes) == pytest.approx(best)


def test_recovery_counts_the_rounds_before_the_first_good_window() -> None:
    losses = np.array(
        [
            [4, 4, 2, 0, 0, 0],  # Means of three rounds: 10/3, 2, 2/3, 0.
            [0, 0, 9, 9, 9, 9],  # 3, 6, 9, 9: never.
            [1, 1, 1, 9, 9, 9],  # At once, though it is bad later.
            [np.inf, 0, 0, 0, 0, 0],
        ],
        dtype=float,
    )
    assert rounds_until_recovered(losses, np.array([2.0, 2.0, 2.0, 2.0]), 3).tolist() == [1, 6, 0, 1]
    assert rounds_until_recovered(losses, np.array([0.5, 9.0, 5.0, 0.0]), 3).tolist() == [3, 0, 0, 1]
    assert rounds_until_recovered(losses[:1], np.array([2.0]), 10).tolist() == [0], "a short phase is one window"
    assert rounds_until_recovered(losses[:1], np.array([1.0]), 10).tolist() == [6]
