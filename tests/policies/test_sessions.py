"""What sessions keep of clients around a policy: versions, exchanges, samples, models that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants
from ofms.policies.changes import Slots
from ofms.policies.controls import loss_by_tuning
from ofms.policies.local_updates import is_control, last_control
from ofms.policies.observations import Samples
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
