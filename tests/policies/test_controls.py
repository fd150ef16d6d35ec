"""Comparing fine-tuned models with their first versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.pooling import poolable
from ofms.core.schedule import Schedule
from ofms.policies.controls import clearly_worse, gains_by_tuning, loss_by_tuning
from ofms.policies.local_updates import GradientStep, is_control, tuning_window_of
from ofms.policies.observations import Recent, Samples
from ofms.policies.offsets import Offsets, learn


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


@pytest.mark.parametrize(
    ("remembered", "first", "new"),
    [([1.0, 2.0, 3.0], [4.0, 5.0, 9.0], 1), ([2.0, 3.0], [7.0, 4.0, 5.0], 0), ([2.0, 3.0], [4.0, 5.0], 0)],
)
def test_samples_are_compared_that_are_known_in_both_versions(
    remembered: list[float], first: list[float], new: int
) -> None:
    """Fine-tuned, the last two are predicted as 2 and 3, else as 4 and 5; the second client evaluated nothing."""
    tuned = np.array([remembered, remembered[::-1]], dtype=np.float32)[..., None, None]
    exchange = np.broadcast_to(np.arange(len(remembered)), tuned.shape[:2])
    recent = Recent(tuned, np.zeros(tuned.shape[:2]), exchange)
    outputs = np.array([first, [np.nan] * len(first)])[..., None, None]
    change = (4 + 9 - 16 - 25) / (4 + 9 + 16 + 25)
    for order in ([0, 1], [1, 0]):
        samples = Samples.of(9, outputs[order], np.zeros((2, new)))
        found = loss_by_tuning(recent.of(np.array(order)), samples, np.ones((2, 1)), (-1, 9), remembers=10)
        assert found[:, 0] == pytest.approx(np.array([change, 0.0])[order])


@pytest.mark.parametrize(("first", "same"), [(1.000001, True), (0.999999, True), (1.0001, False)])
def test_versions_that_differ_by_rounding_alone_are_the_same(first: float, same: bool) -> None:
    recent = Recent(np.ones((1, 1, 1, 1), dtype=np.float32), np.zeros((1, 1)), np.array([[0]]))
    samples = Samples.of(1, np.full((1, 1, 1, 1), first), np.zeros((1, 0)))
    found = loss_by_tuning(recent, samples, np.ones((1, 1)), (-1, 1), remembers=5)
    expected = 0.0 if same else (1 - first**2) / (1 + first**2)
    assert found[0, 0] == (0.0 if same else pytest.approx(expected))


def test_offsets_of_classes_are_those_of_each_version_alone() -> None:
    """One model of three classes on thirty samples, most of one class."""
    rng = np.random.default_rng(3)
    targets, memories = np.where(rng.random(30) < 0.7, 2.0, 0.0), (1.0, 0.75)
    tuned, first = (poolable(rng.normal(size=(30, 3))).astype(np.float32) for _ in range(2))

    def error(pools: np.ndarray) -> float:
        offsets, wrong = Offsets.none(1, len(memories)), 0
        for pool, target in zip(pools.astype(np.float64), targets, strict=True):
            shift = 0.0 if offsets.mean is None else offsets.mean[0]
            wrong += int((pool + shift).argmax() != target)
            offsets = learn(offsets, pool[None, None], np.array([[target]]), np.array(memories))
        return wrong / 30

    recent = Recent(tuned[None, :, None], targets[None], np.arange(30)[None])
    given = (recent, Samples.of(31, first[None, :, None], np.zeros((1, 0))), np.ones((1, 1)), (-1, 31), 50)
    before, after = error(poolable(first)), error(tuned)
    assert before != after
    found = loss_by_tuning(*given, memories)
    assert found[0, 0] == pytest.approx((after - before) / (after + before))
    assert found[0, 0] != pytest.approx(loss_by_tuning(*given)[0, 0]), "offsets change errors"


def test_a_model_is_worse_beyond_two_standard_errors() -> None:
    reported = np.array([[0.5, 0.5, np.nan, -1.0]] * 3 + [[0.4, -0.9, 0.1, -1.0]] * 2)
    assert clearly_worse(reported).tolist() == [True, False, False, False]
    votes = np.array([[0.25, 0.0, -9.0, np.nan]] * 4)
    assert clearly_worse(votes).tolist() == [True, False, False, False], "four equal votes are enough; no vote is none"
    assert clearly_worse(votes[1:]).tolist() == [False] * 4
    assert clearly_worse(np.array([[0.25, -0.25]])).tolist() == [False, False], "the fleet predicts as well as before"


@pytest.mark.parametrize("rounding", [-1e-16, 0.0, 1e-16, 1e-7])
def test_rounding_decides_nothing_where_gains_and_losses_are_equal(rounding: float) -> None:
    """In the fleet, for a model, of four equal votes, and of a gain as large as its standard error."""
    assert clearly_worse(np.array([[0.35 + rounding, 0.27, -0.62]])).tolist() == [False] * 3
    assert clearly_worse(np.array([[0.3 + rounding, 0.5], [-0.3, 0.5]])).tolist() == [False, True]
    assert clearly_worse(np.array([[0.25 - rounding, -9.0]] + [[0.25, -9.0]] * 3)).tolist() == [True, False]
    assert gains_by_tuning(np.array([[-0.25 - rounding, 0.0]])).tolist() == [0, 0]


def test_a_gain_counts_beyond_a_standard_error() -> None:
    assert gains_by_tuning(np.array([[-0.25, 0.0]])).tolist() == [0, 0], "of one client it is never beyond"
    assert gains_by_tuning(np.array([[-0.25, 0.0]] * 2)).tolist() == [0.5, 0]


def test_nothing_is_compared_without_samples_or_models_that_predict() -> None:
    """The first client has no samples; of the second, the model that predicts was not evaluated."""
    nothing = Samples.of(1, np.zeros((1, 1, 2, 1)), np.zeros((1, 1)))
    assert loss_by_tuning(Recent.none(1, 2), nothing, np.ones((1, 2)), (-1, 1), remembers=5).tolist() == [[0, 0]]
    recent = Recent(np.ones((1, 1, 2, 1), dtype=np.float32), np.zeros((1, 1)), np.array([[0]]))
    samples = Samples.of(1, np.array([3.0, np.nan]).reshape(1, 1, 2, 1), np.zeros((1, 0)))
    assert loss_by_tuning(recent, samples, np.array([[0.0, 1.0]]), (-1, 1), remembers=5).tolist() == [[0, 0]]


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
