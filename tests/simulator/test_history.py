"""The history of a run's first clients: bounded in bytes, the same after a resume."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.typing import AnyArray
from ofms.simulator import history
from ofms.simulator.history import History

CLIENTS, MODELS = 3, 20


def add(kept: History, index: int, *, interval: int = 1, rounds: int = 10**9) -> None:
    """An exchange whose numbers tell its rounds; the last one may have fewer rounds."""
    first, stop = index * interval, min((index + 1) * interval, rounds)
    by_round = np.arange(first, stop)[:, None] + np.linspace(0, 0.5, CLIENTS)
    shares = np.full((CLIENTS, MODELS), float(index))
    plan = {"held": shares > 3, "prediction_weights": shares}
    kept.add(
        index, {"score": by_round, "regret": -by_round, "round": np.array(first), "probability": 2 * shares} | plan
    )


def size(arrays: dict[str, AnyArray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def test_a_million_rounds_keep_no_more_bytes_than_a_few_thousand() -> None:
    kept, sizes = History(2), {}
    for index in range(1_000_000):
        if index in (1_000, 10_000):
            sizes[index] = size(kept.arrays())
        if index % kept.step == 0:
            add(kept, index)
    arrays = kept.arrays()
    assert arrays["round"].size >= 700
    assert size(arrays) <= 2 * 2**19
    assert sizes[1_000] == 1_000 * (2 * (8 + 8 + MODELS * (8 + 1 + 8)) + 8), "the first thousand rounds are all kept"
    assert sizes[10_000] <= 2 * 2**19
    assert set(np.diff(arrays["round"]).tolist()) == {kept.step}
    assert arrays["probability"][:, 1, 0].tolist() == (2 * arrays["round"]).tolist()
    assert arrays["score"][:, 1].tolist() == (arrays["round"] + 0.25).tolist()
    assert arrays["held"].shape == (arrays["round"].size, 2, MODELS)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 3), st.integers(1, 4000))
def test_a_resumed_run_keeps_the_same(exchanges: int, stopped: int, interval: int, most: int) -> None:
    rounds = exchanges * interval - interval // 2
    with patch.object(history, "_BYTES_OF_A_CLIENT", most):
        whole, kept = History(CLIENTS), History(CLIENTS)
        for index in range(exchanges):
            if index == stopped:
                saved, kept = kept.flatten(), History(CLIENTS)
                kept.unflatten(*saved)
            add(whole, index, interval=interval, rounds=rounds)
            add(kept, index, interval=interval, rounds=rounds)
    assert kept.step == whole.step
    expected = whole.arrays()
    assert list(kept.arrays()) == list(expected)
    for name, array in kept.arrays().items():
        assert array.dtype == expected[name].dtype
        assert array.tolist() == expected[name].tolist()
    starts = expected["round"]
    assert starts.tolist() == [*range(0, exchanges * interval, interval * whole.step)]
    of_kept = [index for first in starts.tolist() for index in range(first, min(first + interval, rounds))]
    assert expected["score"][:, 0].tolist() == of_kept
    assert starts.size == 1 or size({k: v[:1] for k, v in expected.items()}) * starts.size <= CLIENTS * most


def test_an_older_checkpoint_has_all_exchanges() -> None:
    kept, resumed = History(CLIENTS), History(CLIENTS)
    for index in range(4):
        add(kept, index, interval=2)
    arrays, _ = kept.flatten()
    del arrays["kept.rows"]
    resumed.unflatten(arrays, {})
    for each in (kept, resumed):
        add(each, 4, interval=2)
    assert {name: array.tolist() for name, array in resumed.arrays().items()} == {
        name: array.tolist() for name, array in kept.arrays().items()
    }


@pytest.mark.parametrize("clients", [0, 2])
def test_nothing_is_kept_of_nobody(clients: int) -> None:
    kept = History(clients)
    add(kept, 0)
    assert bool(kept.arrays()) is bool(clients)
