"""Comparing fine-tuned models with their first versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.pooling import poolable
from ofms.core.schedule import Schedule
from ofms.policies.controls import clearly_worse, loss_by_tuning
from ofms.policies.local_updates import GradientStep, is_control, tuning_window_of
from ofms.policies.observations import Recent, Samples


def test_the_loss_is_relative_and_divided_among_the_models_of_the_pool() -> None:
    """One client, four samples, models of weights 1/4 and 3/4; only two samples are between the control exchanges."""
    tuned = np.array([[[8.0], [8.0]], [[1.0], [2.0]], [[0.0], [4.0]], [[9.0], [9.0]]])[None]
    recent = Recent(tuned.astype(np.float32), np.array([[0.0, 1.0, 2.0, 0.0]]), np.array([[2, 3, 4, 5]]))
    first = np.array([[[3.0], [3.0]], [[5.0], [1.0]], [[np.nan], [3.0]], [[7.0], [7.0]]])[None]
    samples = Samples.of(5, first, np.zeros((1, 0)))
    found = loss_by_tuning(recent, samples, np.array([[0.25, 0.75]]), (2, 5), remembers=10)
    # On the second sample only the other model is known in both versions: it is the pool.
    tuned_error = ((0.25 * 1 + 0.75 * 2 - 1) ** 2 + (4 - 2) ** 2) / 2
    first_error = ((0.25 * 5 + 0.75 * 1 - 1) ** 2 + (3 - 2) ** 2) / 2
    change = (tuned_error - first_error) / (tuned_error + first_error)
    assert found == pytest.approx(change * np.array([[(0.25 + 0) / 2, (0.75 + 1) / 2]]))


def test_each_version_has_the_offsets_that_are_learnt_from_it() -> None:
    """A bias of the first version that offsets remove is no gain of fine-tuning."""
    draws = np.random.default_rng(0).normal(size=40)
    tuned, targets = 0.1 * draws, np.zeros((1, 40))
    recent = Recent(tuned.reshape(1, -1, 1, 1).astype(np.float32), targets, np.arange(40)[None])
    samples = Samples.of(41, (tuned + 1).reshape(1, -1, 1, 1), np.zeros((1, 0)))
    given = (recent, samples, np.ones((1, 1)), (-1, 41), 50)
    without, with_offsets = loss_by_tuning(*given)[0, 0], loss_by_tuning(*given, (1.0, 0.75))[0, 0]
    assert without == pytest.approx(-1, abs=0.02)
    assert -0.95 < with_offsets < without + 0.5


@pytest.mark.parametrize(("label", "expected"), [(0.0, 1.0), (1.0, -1.0)])
def test_classes_are_compared_by_their_errors(label: float, expected: float) -> None:
    tuned, first = np.array([0.0, 2.0]), np.array([1.0, 0.5])
    recent = Recent(poolable(tuned)[None, None, None].astype(np.float32), np.array([[label]]), np.array([[0]]))
    samples = Samples.of(1, np.concatenate([first, first]).reshape(1, 2, 1, 2), np.zeros((1, 1)))
    assert loss_by_tuning(recent, samples, np.ones((1, 1)), (-1, 1), remembers=5).tolist() == [[expected]]


def test_versions_without_errors_do_not_differ() -> None:
    outputs = np.zeros((1, 1, 1, 1))
    recent = Recent(outputs.astype(np.float32), np.zeros((1, 1)), np.array([[0]]))
    samples = Samples.of(1, outputs, np.zeros((1, 0)))
    assert loss_by_tuning(recent, samples, np.ones((1, 1)), (-1, 1), remembers=5).tolist() == [[0.0]]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(2, 9))
def test_samples_before_or_after_they_are_remembered_give_the_same(seed: int, new: int, remembers: int) -> None:
    """A device remembers samples one by one, a simulator an exchange at once: the same samples are compared."""
    new = min(new, remembers - 1)
    rng = np.random.default_rng(seed)
    old = int(rng.integers(1, remembers + 1))
    recent = Recent(
        rng.normal(size=(2, old, 3, 1)).astype(np.float32),
        rng.normal(size=(2, old)),
        np.broadcast_to(np.arange(old), (2, old)),
    )
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    outputs = rng.normal(size=(2, old + new, 3, 1))
    targets = rng.normal(size=(2, new))
    at_once = loss_by_tuning(recent, Samples.of(99, outputs, targets), weights, (0, 99), remembers)
    current = np.full((2, old + new, 3, 1), np.nan)
    current[:, old:] = outputs[:, old:]
    after = recent.add(Samples.of(99, current, targets), remembers)
    length = after.targets.shape[1]
    one_by_one = loss_by_tuning(
        after, Samples.of(99, outputs[:, old + new - length :], np.zeros((2, 0))), weights, (0, 99), remembers
    )
    assert one_by_one == pytest.approx(at_once)
    assert not at_once[0, 2], "it does not predict"


def test_a_model_is_worse_beyond_two_standard_errors() -> None:
    reported = np.array([[0.5, 0.5, np.nan, -1.0]] * 3 + [[0.4, -0.9, 0.1, -1.0]] * 2)
    assert clearly_worse(reported).tolist() == [True, False, False, False]


def test_if_the_fleet_predicts_worse_every_worse_model_goes_back() -> None:
    reported = np.array([[0.5, 0.5, np.nan, -0.1], [0.4, -0.4, 0.1, -0.1]])
    assert clearly_worse(reported).tolist() == [True, True, True, False]


def test_a_control_exchange_fine_tunes_nothing() -> None:
    step = GradientStep(0.1, window=4, warm_up=0, every=1, control_every=5)
    assert [number for number in range(17) if is_control(step, number)] == [3, 6, 11, 16]
    tuned = [number for number in range(17) if tuning_window_of(step, Schedule(100), number) is not None]
    assert tuned == [number for number in range(17) if number not in (3, 6, 11, 16)]
    assert not is_control(None, 6)
    assert not is_control(GradientStep(0.0, window=4, warm_up=0, control_every=5), 6)
