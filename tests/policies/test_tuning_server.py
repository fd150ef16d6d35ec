"""The steps of fine-tuning by use, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.core.messages import Reports
from ofms.core.typing import Floats
from ofms.policies.changes import Change
from ofms.policies.protocol import SummedUpdates
from ofms.policies.tuning_server import TuningServer, TuningState
from tests.problems import fleet_of

# Before a comparison, a model has an eighth of the share.
SERVER = TuningServer(share=4.0, rate=0.1)
CATALOGUE = fleet_of([1, 1], [2, 2]).catalogue
FAR = np.array([1e9, 1e9])
NONE = np.zeros(2, dtype=np.bool_)


def reports(losses: Floats) -> Reports:
    return Reports(0, np.arange(losses.shape[0]), losses, np.isfinite(losses))


def summed(clients: int, norms: Floats, parameters: Floats) -> SummedUpdates:
    """Without momentum, directions are the updates themselves."""
    return SummedUpdates(clients, np.square(norms), norms, parameters, NONE, np.zeros(2))


def test_the_first_step_reduces_the_loss_by_a_share_to_first_order() -> None:
    """Updates are -rate · g: along them, a step of s changes the loss by -s · rate · ‖g‖² = -s · ‖update‖²/rate."""
    norms = np.array([0.4, 0.0])
    _, step = SERVER.learn(
        SERVER.start(CATALOGUE), reports(np.array([[2.0, np.nan], [1.0, np.nan]])), summed(2, norms, FAR)
    )
    assert step[0] * norms[0] ** 2 / SERVER.rate == pytest.approx(0.5 * 3.0)
    assert step[1] == 0, "nobody fine-tuned it"


def test_later_steps_use_all_sums_and_fall_with_the_root_of_their_number() -> None:
    state, _ = SERVER.learn(
        SERVER.start(CATALOGUE), reports(np.array([[3.0, np.nan]])), summed(1, np.array([0.4, 0.0]), FAR)
    )
    _, step = SERVER.learn(state, reports(np.array([[1.0, 8.0]])), summed(1, np.array([0.2, 2.0]), FAR))
    assert step[0] == pytest.approx(0.5 * 0.1 * (3 + 1) / (0.4**2 + 0.2**2) / np.sqrt(2))
    assert step[1] == pytest.approx(0.5 * 0.1 * 8 / 2**2), "its own first step"


def test_a_step_does_not_depend_on_the_scale_of_losses_or_parameters() -> None:
    """Losses times a, parameters times b: gradients times a/b, so parameters must move by b times as much."""
    moves = []
    for a, b in ((1.0, 1.0), (1000.0, 1.0), (1.0, 100.0)):
        norms = np.array([0.4, 0.1]) * a / b
        found = SERVER.learn(SERVER.start(CATALOGUE), reports(np.array([[2.0, 1.0]]) * a), summed(1, norms, FAR))
        moves.append(found[1] * norms / b)
    assert moves[1] == pytest.approx(moves[0])
    assert moves[2] == pytest.approx(moves[0])


def test_no_step_moves_parameters_by_more_than_a_tenth_of_their_norm() -> None:
    norms, parameters = np.array([1e-6, 1e-3]), np.array([5.0, 7.0])
    _, step = SERVER.learn(SERVER.start(CATALOGUE), reports(np.array([[1.0, 1.0]])), summed(1, norms, parameters))
    assert step * norms == pytest.approx(0.1 * parameters)


def test_without_updates_nothing_moves() -> None:
    state = SERVER.start(CATALOGUE)
    after, step = SERVER.learn(state, reports(np.array([[np.nan, np.nan]])), summed(1, np.zeros(2), FAR))
    assert not step.any()
    assert after is state


def test_with_momentum_the_step_counts_what_the_direction_gains_along_the_update() -> None:
    """A direction d moves the loss by -⟨update, d⟩/rate per unit of step."""
    state, _ = SERVER.learn(
        SERVER.start(CATALOGUE), reports(np.array([[3.0, np.nan]])), summed(1, np.array([0.4, 0]), FAR)
    )
    moving = SummedUpdates(1, np.array([0.5, 0.0]), np.array([0.9, 0.0]), FAR, NONE, np.zeros(2))
    _, step = SERVER.learn(state, reports(np.array([[1.0, np.nan]])), moving)
    assert step[0] == pytest.approx(0.5 * 0.1 * (3 + 1) / (0.4**2 + 0.5) / np.sqrt(2))


def test_the_share_is_four_times_what_fine_tuning_gained_and_an_eighth_of_it_after_going_back() -> None:
    def share_after(*compared: tuple[bool, float]) -> float:
        state = SERVER.start(CATALOGUE)
        for restored, gain in compared:
            summed = SummedUpdates(2, np.zeros(2), np.zeros(2), FAR, np.array([restored, False]), np.array([gain, 0.0]))
            state, step = SERVER.learn(state, reports(np.array([[0.3, -0.1], [0.1, -0.2]])), summed)
            assert not step.any()
        assert state.share[1] == 0.5
        return float(state.share[0])

    worse, better, neither = (True, 0.0), (False, 0.125), (False, 0.0)
    assert share_after(neither) == 0.5
    assert share_after(worse) == 0.0625
    assert share_after(better) == 2.0
    assert share_after((False, 0.01)) == 0.5
    assert share_after((False, 0.8)) == 4.0
    assert share_after(better, neither, worse) == 0.25
    assert share_after(worse, better) == 2.0


def test_a_share_that_need_not_be_earned_falls_alone() -> None:
    server = TuningServer(share=4.0, rate=0.1, earned=False)
    state, nothing = server.start(CATALOGUE), np.zeros(2)
    for restored, gain, expected in ((False, 0.1, 4.0), (True, 0.0, 0.5)):
        summed = SummedUpdates(2, nothing, nothing, FAR, np.array([restored, False]), np.array([gain, 0.0]))
        state, _ = server.learn(state, reports(np.zeros((2, 2))), summed)
        assert state.share.tolist() == [expected, 4.0]


def test_sums_steps_and_shares_follow_their_models_and_new_ones_start_anew() -> None:
    state = TuningState(np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5, 6]), np.array([4.0, 0.0625]))
    nobody = np.zeros(0, dtype=np.int64)
    change = Change(fleet_of([1, 1, 1], [3]).catalogue, nobody, np.array([1, -1, 0]), same_models=False)
    found = SERVER.adapt(state, change)
    assert (found.losses.tolist(), found.products.tolist()) == ([2, 0, 1], [4, 0, 3])
    assert (found.steps.tolist(), found.share.tolist()) == ([6, 0, 5], [0.0625, 0.5, 4.0])
    assert SERVER.start(CATALOGUE).steps.dtype == np.int64


def test_only_reports_of_clients_that_updated_a_model_count() -> None:
    """Two clients hold the model, one of them updates it: of losses 2 and 7, only 2 counts."""
    told = Reports(0, np.arange(2), np.array([[2.0, np.nan], [7.0, np.nan]]), np.array([[True, False], [False, False]]))
    state, _ = SERVER.learn(SERVER.start(CATALOGUE), told, summed(2, np.array([0.4, 0.0]), FAR))
    assert state.losses.tolist() == [2, 0]
