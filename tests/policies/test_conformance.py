"""The contract that every policy keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.ledger import count_bytes
from ofms.core.messages import Grants, Plan, Reports, Requests
from ofms.core.states import flatten, unflatten
from ofms.core.typing import Flags, Floats
from ofms.policies import MODULES
from ofms.policies.changes import Slots
from ofms.policies.fleet import Fleet
from ofms.policies.observations import Samples
from ofms.policies.protocol import Policy
from ofms.policies.registry import setting_names
from ofms.policies.session import ClientSession, ClientState, ServerSession, expected_weights, open_sessions
from tests.problems import catalogue_of, fleet_of, policy_of

T = TypeVar("T")
pytestmark = pytest.mark.parametrize("name", list(MODULES))


def as_plain(state: Any) -> dict[str, Any]:
    """A state as plain values that can be compared."""
    arrays, values = flatten(state)
    return values | {path: (array.shape, array.tobytes()) for path, array in arrays.items()}


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    costs = draw(st.lists(st.integers(1, 9), min_size=2, max_size=8))
    least = 2 * max(costs)
    budgets = draw(st.lists(st.integers(least, least + 30), min_size=1, max_size=6))
    interval = draw(st.integers(1, 3))
    return fleet_of(costs, budgets, bandwidth=max(budgets) + draw(st.integers(0, 40)), rounds=9, interval=interval)


def new_states(policy: Policy, fleet: Fleet) -> tuple[Any, Any]:
    """States of both halves before the first exchange."""
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(fleet.budgets.size))
    return client, servers.open()


def planned(policy: Policy, fleet: Fleet, client: Any, server: Any, draws: Draws) -> tuple[Any, Any, Requests, Plan]:
    """States of both halves once clients have their plan, with their requests."""
    clients, servers = open_sessions(policy, fleet)
    client, requests = clients.request(client, draws)
    server, grants = servers.grant(server, requests, draws)
    client, plan = clients.plan(client, grants)
    return client, server, requests, plan


def learnt(
    session: ClientSession, state: ClientState, plan: Plan, losses: Floats, known: Flags | None = None
) -> tuple[ClientState, Reports]:
    """Learn from [N, K] losses of an exchange: squared errors of models whose target is 0."""
    known = plan.held if known is None else known
    late, samples = session.late(state, plan), None
    first, stop = session.schedule.span(state.exchange)
    if late is not None:
        length = int(late.max()) + stop - first
        back = np.arange(length, 0, -1)[:, None]
        evaluated = known[:, None] & (back <= late[:, None] + stop - first)
        outputs = np.where(evaluated, np.sqrt(losses / (stop - first))[:, None], np.nan)[..., None]
        samples = Samples.of(state.exchange, outputs, np.zeros((losses.shape[0], stop - first)))
    return session.learn(state, plan, np.where(known, losses, np.nan), samples)


def run_exchanges(
    policy: Policy, fleet: Fleet, seed: int, losses: Floats
) -> list[tuple[Requests, Grants, Any, Reports]]:
    """Run all exchanges with [exchanges, N, K] losses; the states passed in must not change."""
    clients, servers = open_sessions(policy, fleet)
    client, server = new_states(policy, fleet)
    history = []
    for exchange in range(fleet.schedule.exchanges):
        draws = Draws(seed, exchange)
        before = as_plain(client), as_plain(server)
        after, requests = clients.request(client, draws)
        opened, grants = servers.grant(server, requests, draws)
        assert (as_plain(client), as_plain(server)) == before
        client, plan = clients.plan(after, grants)
        server = opened
        client, reports = learnt(clients, client, plan, losses[exchange])
        server, step = servers.absorb(server, reports)
        prediction_weights = expected_weights(policy, client, server)
        assert prediction_weights.sum(axis=1) == pytest.approx(1, abs=1e-9)
        assert (prediction_weights >= 0).all()
        assert np.isfinite(step).all()
        history.append((requests, grants, plan, reports))
    return history


@settings(max_examples=40)
@given(fleets(), st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 1e6]))
def test_every_exchange_keeps_the_contract(name: str, fleet: Fleet, seed: int, scale: float) -> None:
    policy = policy_of(name, fleet)
    shape = (fleet.schedule.exchanges, fleet.budgets.size, len(fleet.catalogue))
    losses = scale * np.random.default_rng(seed).random(shape)
    copies = policy.local.copies if policy.local else 1
    holding = np.full(shape[1:], -1)
    version = fleet.catalogue.version
    for requests, grants, plan, reports in run_exchanges(policy, fleet, seed, losses):
        traffic = count_bytes(fleet.catalogue, grants, reports, copies)
        assert (traffic.held <= fleet.budgets).all(), "the budget is never exceeded"
        reported = 0 if reports.losses is None else np.isfinite(reports.losses).sum()
        assert traffic.up.sum() <= fleet.bandwidth + 8 * reported
        assert reports.losses is None or (np.isfinite(reports.losses) <= grants.held).all()
        assert requests.holding.tolist() == holding.tolist()
        assert grants.version.tolist() == version.tolist()
        assert (grants.sent == (grants.held & (holding != version))).all(), (
            "a version that a client holds is not sent again"
        )
        assert (plan.held == grants.held).all()
        assert plan.prediction_weights.sum(axis=1) == pytest.approx(1)
        assert (plan.prediction_weights[~plan.held] == 0).all(), "only held models predict"
        assert (plan.update_weight[~plan.held] == 0).all()
        assert (plan.update_weight[~grants.uploads] == 0).all(), "only the drawn group uploads"
        assert np.isfinite(plan.update_weight).all()
        assert (reports.updated == (plan.update_weight > 0)).all()
        holding = np.where(grants.held, version, -1)
        version = version + reports.updated.any(axis=0)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_run(name: str, fleet: Fleet, seed: int) -> None:
    policy = policy_of(name, fleet)
    shape = (fleet.schedule.exchanges, fleet.budgets.size, len(fleet.catalogue))
    losses = np.random.default_rng(seed).random(shape)
    first, second = run_exchanges(policy, fleet, seed, losses), run_exchanges(policy, fleet, seed, losses)
    for one, other in zip(first, second, strict=True):
        assert [as_plain(part) for part in one] == [as_plain(part) for part in other]


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_clients_request_the_same_alone_and_together(name: str, fleet: Fleet, seed: int) -> None:
    """N clients in one array request the same models as N arrays of one client."""
    policy = policy_of(name, fleet)
    clients, _ = open_sessions(policy, fleet)
    numbers = np.arange(fleet.budgets.size)
    draws = Draws(seed, 0)
    state = clients.join(fleet.catalogue, fleet.budgets, numbers)
    together = clients.request(state, draws)[1]
    alone = [
        clients.request(
            clients.join(fleet.catalogue, fleet.budgets[index : index + 1], numbers[index : index + 1]), draws
        )[1]
        for index in numbers
    ]
    assert as_plain(Requests.stack(alone)) == as_plain(together)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=10)
def test_states_can_be_saved_and_loaded(name: str, fleet: Fleet, seed: int) -> None:
    """A state that was flattened and restored continues with the same requests and grants."""
    policy = policy_of(name, fleet)
    clients, servers = open_sessions(policy, fleet)
    client, server = new_states(policy, fleet)
    for exchange in range(3):
        client, server, requests, plan = planned(policy, fleet, client, server, Draws(seed, exchange))
        losses = np.random.default_rng(exchange).random(plan.held.shape)
        client, reports = learnt(clients, client, plan, losses)
        server, _ = servers.absorb(server, reports)
    again, again_server = map(through_a_file, (client, server), new_states(policy, fleet))
    draws = Draws(seed, 3)
    expected, found = (clients.request(each, draws)[1] for each in (client, again))
    assert as_plain(found) == as_plain(expected)
    expected_grants, found_grants = (servers.grant(each, requests, draws)[1] for each in (server, again_server))
    assert as_plain(found_grants) == as_plain(expected_grants)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_only_losses_of_observed_models_are_learnt_from(name: str, fleet: Fleet, seed: int) -> None:
    policy = policy_of(name, fleet)
    clients, _ = open_sessions(policy, fleet)
    client, server = new_states(policy, fleet)
    client, _, _, plan = planned(policy, fleet, client, server, Draws(seed, 0))
    observed = policy.observed(plan)
    assert (observed <= plan.held).all()
    assert (observed >= (plan.prediction_weights > 0)).all(), "models that predict are observed"
    losses = np.random.default_rng(seed).random(plan.held.shape)
    everything, needed = (learnt(clients, client, plan, losses, known) for known in (plan.held, observed))
    assert as_plain(needed[0]) == as_plain(everything[0])
    assert as_plain(needed[1]) == as_plain(everything[1])


def test_a_state_of_another_shape_is_refused(name: str) -> None:
    fleet = fleet_of([4, 3, 2], [8, 9], rounds=5)
    state, _ = new_states(policy_of(name, fleet), fleet)
    arrays, values = flatten(state)
    some = next(iter(arrays))
    with pytest.raises((ValueError, KeyError)):
        unflatten(state, arrays | {some: np.zeros((9, 9))}, values)


def through_a_file(state: T, template: T) -> T:
    """Save a state as bytes and restore it into a new one."""
    arrays, values = flatten(state)
    content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return unflatten(template, safetensors.numpy.load(content), json.loads(json.dumps(values)))


@pytest.mark.parametrize(("field", "value"), [("loss_bound", "soft"), ("window", 0), ("warm_up", -1)])
def test_an_invalid_setting_is_refused_before_the_run(name: str, field: str, value: object) -> None:
    error, message = (InvalidInput, f"{field} = {value}") if field in setting_names(name) else (TypeError, field)
    with pytest.raises(error, match=message):
        policy_of(name, fleet_of([6, 4, 2], [12]), **{field: value})


def test_a_budget_under_the_two_largest_models_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"budget = 9 bytes: .* at least 10 bytes"):
        policy_of(name, fleet_of([6, 4, 2], [12, 9]))


def test_a_single_model_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"models = 1: .* at least 2"):
        policy_of(name, fleet_of([6], [12]))


def test_no_clients_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="clients = 0"):
        policy_of(name, fleet_of([6, 4], []))


def test_a_bandwidth_below_the_largest_update_is_refused(name: str) -> None:
    if policy_of(name, fleet_of([6, 4, 2], [12])).local is None:
        policy_of(name, fleet_of([6, 4, 2], [12], bandwidth=1))
        return
    with pytest.raises(InvalidInput, match="bandwidth = 5 bytes"):
        policy_of(name, fleet_of([6, 4, 2], [12], bandwidth=5))


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=10)
def test_a_policy_adapts_to_models_that_come_and_go(name: str, fleet: Fleet, seed: int) -> None:
    """A retired model is never requested, a new one may be; weights are probabilities; the same alone and together."""
    if name in ("fed-omd", "perfedavg", "fed-poe"):
        return  # Their models are named in their settings.
    random = np.random.default_rng(seed)
    whole, least = len(fleet.catalogue) + 1, 2 * int(fleet.catalogue.storage.max())
    catalogue = catalogue_of([*fleet.catalogue.storage.tolist(), int(random.integers(1, least // 2 + 1))])
    wide = replace(fleet, catalogue=catalogue)
    retired = int(random.integers(0, whole - 1))
    kept = np.array([slot for slot in range(whole) if slot != retired])
    before, after = Slots.of(whole, np.arange(whole - 1)), Slots.of(whole, kept)
    sessions = []
    for slots in (before, after):
        policy = policy_of(name, replace(fleet, catalogue=slots.catalogue(catalogue)))
        sessions.append((ClientSession(policy, fleet.schedule, slots), ServerSession(policy, wide, slots)))
    numbers, shape = np.arange(fleet.budgets.size), (fleet.budgets.size, whole)
    groups = [numbers] if numbers.size == 1 else [numbers, *(numbers[index : index + 1] for index in numbers)]
    results = []
    for own in groups:
        (clients, servers), (later, serving) = sessions
        client, server = clients.join(catalogue, fleet.budgets[own], own), servers.open()
        for exchange in range(2):
            draws = Draws(seed, exchange)
            client, requests = clients.request(client, draws)
            server, grants = servers.grant(server, requests, draws)
            client, plan = clients.plan(client, grants)
            losses = np.random.default_rng(exchange).random(shape)[own]
            client, reports = learnt(clients, client, plan, losses)
            server, _ = servers.absorb(server, reports)
        client = later.adapt(client, clients, catalogue, fleet.budgets[own])
        server = serving.adapt(server, servers)
        draws = Draws(seed, 2)
        client, requests = later.request(client, draws)
        server, grants = serving.grant(server, requests, draws)
        client, plan = later.plan(client, grants)
        weights = expected_weights(later.policy, client, server, after)  # type: ignore[arg-type]
        assert weights.sum(axis=1) == pytest.approx(1)
        assert not plan.held[:, retired].any()
        assert (weights[:, retired] == 0).all()
        assert ((plan.held @ catalogue.storage) <= fleet.budgets[own]).all()
        learnt(later, client, plan, np.random.default_rng(9).random(shape)[own])
        results.append((requests, weights))
    if len(groups) > 1:
        alone = np.concatenate([requests.wanted for requests, _ in results[1:]])
        assert alone.tolist() == results[0][0].wanted.tolist()
