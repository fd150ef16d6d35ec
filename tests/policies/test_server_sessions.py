"""What a policy's server half is told and asked for: versions, grants, quarantine, and what clients report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.robust import Aggregation
from ofms.core.typing import Flags, Floats
from ofms.policies.changes import ALL_MODELS, Change, Slots
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import GradientStep
from ofms.policies.protocol import SummedUpdates
from ofms.policies.session import ServerSession
from tests.problems import fleet_of, policy_of

FLEET = fleet_of([1, 1, 1], [2, 2], rounds=40)
NUMBERS = np.array([4, 9])


def test_the_server_keeps_versions_and_forgets_quarantine_of_models_that_go_back() -> None:
    policy = policy_of("mab", FLEET)
    session = ServerSession(policy, FLEET)
    state = replace(session.open(), version=np.array([3, 4, 5]), quarantined=np.array([True, True, False]), clients=2)
    state = replace(state, policy=replace(state.policy, cumulative_losses=np.array([1.0, 2.0, 3.0])))
    wider = fleet_of([1, 1, 1, 1], [2, 2])
    after = ServerSession(policy_of("mab", wider), wider).adapt(state, session)
    assert (after.version.tolist(), after.quarantined.tolist()) == ([3, 4, 5, 0], [True, True, False, False])
    assert after.policy.cumulative_losses[:3].tolist() == [1, 2, 3]
    assert after.clients == 2
    back = session.adapt(state, session, renewed=[1])
    assert (back.version.tolist(), back.quarantined.tolist()) == ([3, 5, 5], [True, False, False])
    assert back.policy.cumulative_losses[[0, 2]].tolist() == [1, 3]
    for anew in (session.adapt(state, session, anew=True), session.adapt(state, session, renewed=[0, 1, 2])):
        assert anew.policy.cumulative_losses.tolist() == [0, 0, 0]
    first = session.adapt(state, session, renewed=[1, 2])
    assert first.policy.cumulative_losses[0] == 1, "one model stays"


def granted(name: str, **settings: Any) -> tuple[ServerSession, Any, Grants]:
    session = ServerSession(policy_of(name, FLEET, **settings), FLEET)
    wanted = np.array([[True, True, False], [True, False, False]])
    requests = Requests(6, np.array([0, 1]), wanted, np.array([[0, -1, 2], [1, -1, -1]]))
    state = replace(session.open(), version=np.array([1, 0, 0]))
    return session, *session.grant(state, requests, Draws(0, 6))


def test_grants_send_what_clients_do_not_have_in_its_version() -> None:
    session, state, grants = granted("ofms-ft", warm_up=0)
    assert grants.sent.tolist() == [[True, True, False], [False, False, False]]
    assert (grants.version.tolist(), grants.exchange, state.clients) == ([1, 0, 0], 6, 2)
    assert (grants.uploads.sum() >= 1, grants.quarantined) == (True, None)
    _, _, frozen = granted("explore-then-commit")
    assert (frozen.uploads.tolist(), frozen.groups) == ([False, False], 1)
    sick = replace(state, quarantined=np.array([False, True, False]))
    requests = Requests(7, np.arange(2), grants.held, np.zeros((2, 3), dtype=np.int64))
    assert session.grant(sick, requests, Draws(0, 7))[1].quarantined is sick.quarantined
    with pytest.raises(InvalidInput, match=r"^policy = ofms-ft: client 0, exchange 7: it holds 3 bytes"):
        session.grant(state, replace(requests, wanted=np.ones((2, 3), dtype=np.bool_)), Draws(0, 7))


def test_models_whose_updates_are_not_finite_are_quarantined_and_not_moved() -> None:
    """Of the first model one update is finite, of the second none; the sum of the third is not."""
    session, state, _ = granted("ofms-ft", warm_up=0, server_step=2)
    updated = np.array([[True, False, True], [False, False, False]])
    left_out = np.array([[False, True, False], [True, True, False]])
    reports = Reports(6, np.arange(2), None, updated, left_out)
    sizes = (np.array([1.0, 1.0, 1.0]), np.array([1.0, 1.0, np.inf]), np.ones(3))
    after, steps = session.absorb(state, reports, sizes)
    assert after.quarantined.tolist() == [False, True, True]
    assert after.version.tolist() == [2, 0, 0]
    assert np.isfinite(steps).all()
    assert session.restored(state, replace(reports, left_out=~updated, updated=updated & False)).tolist() == [
        True,
        False,
        False,
    ]
    unmoved = session.unmoved(state, after, [0])
    assert (unmoved.version.tolist(), unmoved.quarantined.tolist()) == ([1, 0, 0], [True, True, True])
    assert session.unmoved(state, after, []) is after


def test_hostile_losses_are_moderated_with_robust_aggregation() -> None:
    session, state, _ = granted("late-hedge", warm_up=0)
    robust = ServerSession(replace(session.policy, aggregation=Aggregation.of("median")), FLEET)
    losses = np.array([[1.0, np.nan, np.nan], [90.0, np.nan, np.nan]])
    reports = Reports(7, np.arange(2), losses, ~np.isnan(losses))
    assert session._moderate(reports) is reports
    assert robust._moderate(reports).losses[:, 0].tolist() == [45.5, 45.5]  # type: ignore[index]
    assert robust._moderate(replace(reports, losses=None)).losses is None
    assert state.clients == 2


def test_which_servers_learn_from_late_reports() -> None:
    late = {name: ServerSession(policy_of(name, FLEET), FLEET).learns_late for name in ("mab", "ofms-ft", "late-hedge")}
    assert late == {"mab": True, "ofms-ft": True, "late-hedge": True}
    session, state, _ = granted("mab")
    reports = Reports(6, np.array([1]), np.full((1, 3), 2.0), np.zeros((1, 3), dtype=np.bool_))
    then = replace(state.policy, pmf=np.array([0.5, 0.25, 0.25]), chosen=1)
    after = session.learn_late(state, then, reports, 4)
    grown = after.policy.cumulative_losses - state.policy.cumulative_losses
    assert grown.tolist() == [0, 2 / 4 / 0.25, 0], "the loss over all clients, and over the probability of then"
    other, before, _ = granted("ofms-ft")
    assert other.learn_late(before, None, reports, 4) is before


class Recording:
    """A server half that records what a session passes on, and always answers with the same steps."""

    def __init__(self, step: Any) -> None:
        self.step = step
        self.changes: list[Change] = []
        self.told: list[tuple[Reports, SummedUpdates]] = []

    def start(self, catalogue: Catalogue) -> str:
        return "started"

    def adapt(self, state: str, change: Change) -> str:
        self.changes.append(change)
        return "adapted"

    def grant(self, state: str, wanted: Flags, draws: Draws) -> tuple[str, Flags, None]:
        return state, wanted, None

    def learn(self, state: str, reports: Reports, summed: SummedUpdates) -> tuple[str, Any]:
        self.told.append((reports, summed))
        return "learnt", self.step


# Versions are compared in the exchanges 3, 6, 11, …
STEP = GradientStep(0.1, window=4, warm_up=0, control_every=5)
FOUR = fleet_of([1, 1, 1, 1], [2, 2], rounds=40)
TWO_OF_FOUR = Slots(4, np.array([3, 1]))
# By slot: fine-tuning made the second model worse and the fourth one better, on the whole better.
COMPARED = np.array([[0.0, 0.1, np.nan, -0.2]] * 5)
NO_UPDATES = np.zeros((5, 4), dtype=np.bool_)


def recorded(
    step: Any, fleet: Fleet = FOUR, slots: Slots = ALL_MODELS, **parts: Any
) -> tuple[ServerSession, Recording]:
    half: Any = Recording(step)
    policy = replace(policy_of("mab", fleet), local=STEP, reports_use=True, name="mine", server=half, **parts)
    return ServerSession(policy, fleet, slots), half


def test_a_server_begins_with_first_versions_and_nobody() -> None:
    session, _ = recorded(1.0)
    state = session.open()
    assert (state.version.tolist(), state.clients, state.policy) == ([0, 0, 0, 0], 0, "started")
    assert state.quarantined.tolist() == [False] * 4


def test_a_server_half_adapts_to_models_and_to_no_budgets() -> None:
    session, half = recorded(1.0)
    assert session.adapt(session.open(), session, renewed=[1, 2, 3]).policy == "adapted"
    (change,) = half.changes
    assert (change.kept.tolist(), change.same_models) == ([0, -1, -1, -1], False)
    assert (change.budgets.shape, change.budgets.dtype.name) == ((0,), "int64")
    assert session.adapt(session.open(), session, renewed=[0, 1, 2, 3]).policy == "started", "none stays"


def test_in_a_control_exchange_clients_are_sent_first_versions() -> None:
    """Of the models in two of four slots; the half leaves prediction weights to the clients."""
    session, _ = recorded(1.0, slots=TWO_OF_FOUR)
    state = replace(session.open(), version=np.array([0, 2, 0, 1]))
    wanted = np.array([[False, True, False, True]] * 2)
    holding = np.array([[-1, 2, -1, 0], [-1, 0, -1, 1]])
    for exchange, version in ((6, [0, 0, 0, 0]), (7, [0, 2, 0, 1])):
        _, grants = session.grant(state, Requests(exchange, np.arange(2), wanted, holding), Draws(0, exchange))
        assert grants.version.tolist() == version
        assert grants.held.tolist() == wanted.tolist()
        assert grants.sent.tolist() == (wanted & (holding != version)).tolist()
        assert grants.prediction_weights is None


def test_a_server_half_is_told_of_the_models_in_use() -> None:
    session, half = recorded(np.array([2, 3]), slots=TWO_OF_FOUR)
    state = replace(session.open(), version=np.array([0, 2, 1, 3]), clients=7)
    sizes = (np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0]), np.array([9.0, 10.0, 11.0, 12.0]))
    after, steps = session.absorb(state, Reports(6, np.arange(5), COMPARED, NO_UPDATES), sizes, awaited=4)
    ((reports, summed),) = half.told
    assert reports.losses is not None
    assert reports.losses.tolist() == [[-0.2, 0.1]] * 5
    assert (summed.clients, summed.awaited) == (7, 4)
    assert (summed.products.tolist(), summed.norms.tolist(), summed.parameters.tolist()) == ([4, 2], [8, 6], [12, 10])
    assert summed.restored.tolist() == [False, True]
    assert summed.gains == pytest.approx([0.2, 0])
    assert (after.policy, after.version.tolist()) == ("learnt", [0, 3, 1, 3])
    assert (steps.tolist(), steps.dtype.name) == ([0, 3, 0, 2], "float64")


def test_one_step_is_that_of_all_slots() -> None:
    session, half = recorded(2, slots=TWO_OF_FOUR)
    _, steps = session.absorb(session.open(), Reports(5, np.arange(5), None, NO_UPDATES))
    assert (steps.tolist(), steps.dtype.name) == ([2, 2, 2, 2], "float64")
    ((_, summed),) = half.told
    assert summed.awaited == 0
    assert not any(each.any() for each in (summed.products, summed.norms, summed.parameters, summed.gains))


@pytest.mark.parametrize(("exchange", "losses"), [(7, COMPARED), (6, None)])
def test_versions_are_compared_in_control_exchanges_by_what_clients_report(
    exchange: int, losses: Floats | None
) -> None:
    session, half = recorded(1.0)
    state = replace(session.open(), version=np.array([0, 2, 1, 3]))
    after, _ = session.absorb(state, Reports(exchange, np.arange(5), losses, NO_UPDATES))
    ((_, summed),) = half.told
    assert (summed.restored.tolist(), summed.gains.tolist()) == ([False] * 4, [0] * 4)
    assert after.version.tolist() == [0, 2, 1, 3]


def test_fine_tuned_models_go_back_that_are_worse_or_lost() -> None:
    """The first two are worse, and the first never moved; all updates of the last two were not finite.

    The last one is quarantined: it stays as it is.
    """
    session, _ = recorded(1.0)
    quarantined = np.array([False, False, False, True])
    state = replace(session.open(), version=np.array([0, 2, 1, 3]), quarantined=quarantined)
    losses = np.array([[0.1, 0.1, -0.9, -0.9]] * 5)
    left_out = np.array([[False, False, True, True]] * 5)
    reports = Reports(6, np.arange(5), losses, NO_UPDATES, left_out)
    assert session.restored(state, reports).tolist() == [False, True, True, False]
    assert session.restored(state, replace(reports, exchange=7)).tolist() == [False, False, True, False]
    assert session.restored(state, replace(reports, losses=None)).tolist() == [False, False, True, False]
    assert session.restored(state, replace(reports, left_out=None)).tolist() == [False, True, False, False]
    other, _ = recorded(1.0, uploaded=(2,))
    assert other.restored(state, reports).tolist() == [False, False, True, False], "nobody fine-tunes the second"
    assert not other.restored(state, replace(reports, left_out=None)).any()


def test_a_server_half_is_told_nothing_of_quarantined_updates() -> None:
    """All updates of the second model were lost, the sum of the third points away from its direction without end."""
    session, half = recorded(1.0)
    updated = np.array([[True, False, True, True]] * 5)
    reports = Reports(7, np.arange(5), None, updated, ~updated)
    sizes = (np.array([1.0, 2.0, -np.inf, np.inf]), np.array([5.0, 6.0, np.inf, np.inf]), np.ones(4))
    after, _ = session.absorb(session.open(), reports, sizes)
    ((told, summed),) = half.told
    assert (summed.products.tolist(), summed.norms.tolist()) == ([1, 0, 0, 0], [5, 0, 0, 0])
    assert told.updated.tolist() == [[True, False, False, False]] * 5
    assert (after.quarantined.tolist(), after.version.tolist()) == ([False, True, True, True], [1, 0, 0, 0])


def test_hostile_comparisons_are_moderated_with_robust_aggregation() -> None:
    """No vote counts more than the median of them, 0.25."""
    votes = np.array([[0.3], [-0.1], [0.2], [-1e30], [0.0]]) * np.ones(4)
    reports = Reports(6, np.arange(5), votes, NO_UPDATES)
    session, half = recorded(1.0, aggregation=Aggregation.of("median"))
    session.absorb(session.open(), reports)
    told = half.told[0][0]
    assert told.losses == pytest.approx(np.array([[0.25], [-0.1], [0.2], [-0.25], [0.0]]) * np.ones(4))
    assert (told.exchange, told.client is reports.client, told.updated is reports.updated) == (6, True, True)


def test_a_step_that_is_not_finite_names_the_policy() -> None:
    session, _ = recorded(np.array([1.0, np.inf, 1.0, 1.0]))
    with pytest.raises(InvalidInput, match=r"^policy = mine: exchange 7: the server's step for model 1 is inf"):
        session.absorb(session.open(), Reports(7, np.arange(5), None, NO_UPDATES))
