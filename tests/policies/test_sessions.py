"""What sessions keep around a policy: versions, exchanges, samples, quarantine, models that come and go."""

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
from ofms.policies.controls import loss_by_tuning
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import GradientStep, is_control, last_control
from ofms.policies.observations import Samples
from ofms.policies.protocol import SummedUpdates
from ofms.policies.rules import BrokenRule
from ofms.policies.session import ClientSession, ClientState, ServerSession, expected_weights, open_sessions
from tests.problems import fleet_of, policy_of

FLEET = fleet_of([1, 1, 1], [2, 2], rounds=40)
NUMBERS = np.array([4, 9])


def learnt_state(**changes: Any) -> tuple[ClientSession, ClientState]:
    """Late hedging of the clients 0 and 1 after one exchange in which they saw a sample."""
    settings = {"window": 4, "warm_up": 0, "fine_tuned": "used"} | changes
    session, servers = open_sessions(policy_of("late-hedge", FLEET, **settings), FLEET)
    state = session.join(FLEET.catalogue, FLEET.budgets, np.arange(2))
    state, requests = session.request(state, Draws(0, 0))
    _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
    state, plan = session.plan(state, grants)
    outputs = np.where(plan.held[:, None, :, None], 0.5, np.nan)
    samples = Samples.of(0, outputs, np.ones((2, 1)))
    return session, session.learn(state, plan, np.zeros((2, 3)), samples)[0]


def test_clients_begin_with_nothing() -> None:
    session = ClientSession(policy_of("late-hedge", FLEET), FLEET.schedule)
    state = session.join(FLEET.catalogue, FLEET.budgets, NUMBERS)
    assert (state.client.tolist(), state.exchange) == ([4, 9], 0)
    assert state.held_version.tolist() == [[-1] * 3] * 2
    assert state.offsets.values.shape == (2, len(session.policy.offset_memories), 0)
    after, requests = session.request(state, Draws(0, 7))
    assert (after.exchange, requests.exchange, requests.holding is state.held_version) == (7, 7, True)


def test_a_broken_request_names_the_policy() -> None:
    class Broken:
        def start(self, catalogue: Any, budgets: Any) -> None:
            return None

        def select(self, state: Any, draws: Any) -> tuple[None, Any]:
            return None, np.ones((2, 3))

    broken: Any = Broken()
    session = ClientSession(replace(policy_of("mab", FLEET), client=broken, name="mine"), FLEET.schedule)
    with pytest.raises(InvalidInput, match=r"^policy = mine: exchange 3: the request must be an array of flags"):
        session.request(session.join(FLEET.catalogue, FLEET.budgets, NUMBERS), Draws(0, 3))


def test_plans_keep_versions_and_quarantined_models_are_not_updated() -> None:
    session, state = learnt_state()
    held = np.array([[True, True, False], [True, False, True]])
    state, _ = session.request(state, Draws(0, 6))
    wanted = state.policy.held
    grants = Grants(6, np.arange(2), wanted, wanted, None, np.ones(2, dtype=np.bool_), 2, np.array([3, 4, 5]))
    after, plan = session.plan(state, grants)
    assert after.held_version.tolist() == np.where(wanted, [3, 4, 5], -1).tolist()
    assert after.exchange == 6
    assert plan.offset is not None
    assert np.abs(plan.offset).max() > 0, "learnt from the first sample"
    assert plan.update_weight.any(axis=1).all()
    quarantined = np.asarray(plan.update_weight.any(axis=0))
    _, without = session.plan(state, replace(grants, quarantined=quarantined))
    assert not without.update_weight.any()
    assert without.prediction_weights.tolist() == plan.prediction_weights.tolist()
    some = np.array([True, False, False])
    _, part = session.plan(state, replace(grants, quarantined=some))
    assert part.update_weight.tolist() == np.where(some, 0, plan.update_weight).tolist()
    assert held.shape == plan.held.shape


def test_models_are_evaluated_on_samples_that_they_have_not_seen() -> None:
    session, state = learnt_state()
    state, _ = session.request(state, Draws(0, 1))
    wanted = state.policy.held
    grants = Grants(1, np.arange(2), wanted, wanted, None, np.zeros(2, dtype=np.bool_), 2, np.zeros(3, dtype=np.int64))
    state, plan = session.plan(state, grants)
    late = session.late(state, plan)
    assert late is not None
    assert late.tolist() == np.where(wanted, state.recent.unseen(), 0).tolist()
    first = next(exchange for exchange in range(200) if is_control(session.policy.local, exchange))
    control = session.late(replace(state, exchange=first), plan)
    assert control is not None
    assert control.tolist() == np.where(wanted, 1, 0).tolist(), "all, by their first versions"
    plain = ClientSession(policy_of("mab", FLEET), FLEET.schedule)
    assert plain.late(plain.join(FLEET.catalogue, FLEET.budgets, NUMBERS), plan) is None


def test_clients_compare_versions_in_control_exchanges_and_report_losses_by_use_in_others() -> None:
    session, state = learnt_state()
    local, remembers = session.policy.local, session.policy.remembers
    first = next(exchange for exchange in range(200) if is_control(local, exchange))
    state, plan = session.plan(*all_wanted(session, state, first))
    # The remembered sample, whose target is 1, in first versions, and a new one.
    outputs = np.broadcast_to(np.array([0.75, 0.5])[:, None, None], (2, 2, 3, 1))
    samples = Samples.of(first, np.where(plan.held[:, None, :, None], outputs, np.nan), np.ones((2, 1)))
    exchanges = (last_control(local, first), first)
    memories = session.policy.offset_memories
    expected = loss_by_tuning(state.recent, samples, plan.prediction_weights, exchanges, remembers, memories)
    assert (expected > 0).any(axis=1).all(), "0.5 was worse"
    compared = session.compare(state, plan, samples)
    assert compared is not None
    assert compared.tolist() == expected.tolist()
    assert session.compare(replace(state, exchange=first + 1), plan, samples) is None
    second = next(exchange for exchange in range(first + 1, 200) if is_control(local, exchange))
    again = session.compare(replace(state, exchange=second), plan, samples)
    assert again is not None
    assert not again.any(), "samples of before the last control exchange are compared once"
    of_held = np.where(plan.held, expected, np.nan)
    after, reports = session.learn(state, plan, np.zeros((2, 3)), samples)
    np.testing.assert_array_equal(reports.losses, of_held)
    assert (reports.exchange, reports.client.tolist()) == (first, [0, 1])
    assert reports.updated.tolist() == (plan.update_weight > 0).tolist()
    remembered = session.remember(state, plan, samples)
    _, later = session.learn(remembered, plan, np.zeros((2, 3)), compared=compared)
    np.testing.assert_array_equal(later.losses, of_held)
    _, unknown = session.learn(remembered, plan, np.zeros((2, 3)))
    np.testing.assert_array_equal(unknown.losses, np.where(plan.held, 0.0, np.nan))
    usual = replace(plan, update_weight=2 * plan.prediction_weights)
    _, by_use = session.learn(replace(after, exchange=first + 1), usual, np.zeros((2, 3)))
    np.testing.assert_array_equal(by_use.losses, after.recent.losses_by_use(2 * plan.prediction_weights))
    assert by_use.losses is not None
    assert np.isfinite(by_use.losses).any(axis=1).all(), "each client reports some"


def test_clients_report_comparisons_of_the_models_that_they_fine_tune_alone() -> None:
    """Those of others would say how much a client uses them."""
    session, state = learnt_state(fine_tuned="global", model=1, control_every=4)
    assert session.policy.uploaded == (1,)
    first = next(exchange for exchange in range(200) if is_control(session.policy.local, exchange))
    state, plan = session.plan(*all_wanted(session, state, first))
    compared = np.where(plan.held, 0.25, 0.0)
    _, reports = session.learn(state, plan, np.zeros((2, 3)), compared=compared)
    assert reports.losses is not None
    assert plan.held[:, [0, 2]].any()
    np.testing.assert_array_equal(reports.losses, np.where(plan.held & [False, True, False], 0.25, np.nan))


def test_offsets_are_learnt_from_labels_alone() -> None:
    """Outputs on past samples, without a new label, change no offset."""
    session, state = learnt_state()
    plan = session.plan(*all_wanted(session, state, 1))[1]
    late = Samples.of(1, np.where(plan.held[:, None, :, None], 0.25, np.nan), np.zeros((2, 0)))
    after = session.remember(state, plan, late)
    assert after.offsets is state.offsets
    labelled = Samples.of(1, late.outputs, np.ones((2, 1)))
    assert session.remember(state, plan, labelled).offsets.counts.tolist() != state.offsets.counts.tolist()


def test_a_grant_may_be_of_a_later_exchange_than_was_requested() -> None:
    """The server opened the requested one without this client."""
    session, state = learnt_state()
    state, grants = all_wanted(session, state, 1)
    assert state.policy.rounds.number[0, -1] == 1
    after, _ = session.plan(state, replace(grants, exchange=3))
    assert (after.exchange, after.policy.rounds.number[0, -1]) == (3, 3)


def all_wanted(session: ClientSession, state: ClientState, exchange: int) -> tuple[ClientState, Grants]:
    """A state that requested an exchange, and a grant of all that it wants."""
    state, _ = session.request(state, Draws(0, exchange))
    wanted, uploads = state.policy.held, np.ones(2, dtype=np.bool_)
    return state, Grants(exchange, np.arange(2), wanted, wanted, None, uploads, 2, np.zeros(3, dtype=np.int64))


def test_clients_keep_what_they_know_of_models_that_stay() -> None:
    """A fourth model comes; then the second goes back to an earlier version; then the policy starts anew."""
    session, state = learnt_state()
    wider = fleet_of([1, 1, 1, 1], [2, 3], rounds=40)
    later = ClientSession(policy_of("late-hedge", wider, window=4, warm_up=0), wider.schedule)
    state = replace(state, exchange=5)
    after = later.adapt(state, session, wider.catalogue, wider.budgets)
    assert after.held_version.tolist() == [[*row, -1] for row in state.held_version.tolist()]
    assert (after.exchange, after.client is state.client, after.offsets is state.offsets) == (5, True, True)
    assert np.array_equal(after.recent.outputs[:, :, :3], state.recent.outputs, equal_nan=True)
    assert np.isnan(after.recent.outputs[:, :, 3]).all()
    assert after.recent.targets is state.recent.targets
    assert after.policy.budgets.tolist() == [2, 3]
    assert np.array_equal(after.policy.last_held[:, :3], state.policy.last_held)

    back = session.adapt(state, session, FLEET.catalogue, FLEET.budgets, renewed=[1])
    assert np.isnan(back.recent.outputs[:, :, 1]).all()
    assert np.array_equal(back.recent.outputs[:, :, [0, 2]], state.recent.outputs[:, :, [0, 2]], equal_nan=True)
    assert back.policy.last_held[:, 1].tolist() == [-1, -1]

    for anew in (
        session.adapt(state, session, FLEET.catalogue, FLEET.budgets, anew=True),
        session.adapt(state, session, FLEET.catalogue, FLEET.budgets, renewed=[0, 1, 2]),
    ):
        assert anew.recent.targets.shape == (2, 0)
        assert anew.held_version.tolist() == state.held_version.tolist()
        assert (anew.exchange, anew.policy.exchange, anew.offsets.values.shape[2]) == (5, 0, 0)
    first = session.adapt(state, session, FLEET.catalogue, FLEET.budgets, renewed=[1, 2])
    assert first.recent.targets.shape == (2, 1), "one model stays"


def test_other_memories_of_offsets_begin_anew() -> None:
    session, state = learnt_state()
    other = ClientSession(policy_of("late-hedge", FLEET, window=4, memories=(0,)), FLEET.schedule)
    after = other.adapt(state, session, FLEET.catalogue, FLEET.budgets)
    assert (after.offsets.values.shape, after.recent.targets.shape) == ((2, 1, 0), (2, 1))


def test_expected_weights_that_are_none_name_the_policy() -> None:
    policy = replace(policy_of("mab", FLEET), name="mine", expected_weights=lambda client, server: np.ones((2, 3)))
    clients, servers = open_sessions(policy, FLEET)
    state = clients.join(FLEET.catalogue, FLEET.budgets, NUMBERS)
    with pytest.raises(BrokenRule, match=r"mine.*client 4.*sum to 3"):
        expected_weights(policy, state, servers.open())


def test_expected_weights_of_models_in_use() -> None:
    """The clients' own, in the slots of their models; MAB's are the server's, for all clients."""
    slots = Slots(4, np.array([3, 1]))
    two, whole = fleet_of([1, 1], [2, 2]), fleet_of([1, 1, 1, 1], [2, 2])
    policy = policy_of("mab", two)
    clients, servers = ClientSession(policy, whole.schedule, slots), ServerSession(policy, whole, slots)
    state = clients.join(whole.catalogue, whole.budgets, NUMBERS)
    server = replace(servers.open(), policy=replace(servers.open().policy, pmf=np.array([0.75, 0.25])))
    assert expected_weights(policy, state, server, slots).tolist() == [[0, 0.25, 0, 0.75]] * 2


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
