"""A policy that breaks a rule ends the run, in every simulator, with a line that names policy, client and exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.core.draws import ClientDraws, Draws
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.fleet import Fleet
from ofms.policies.observations import Observations
from ofms.policies.protocol import Policy
from ofms.policies.registry import build_policy
from ofms.policies.session import open_sessions
from ofms.runs import config
from ofms.simulator.simulation import make_simulation
from tests.problems import fleet_for, fleet_of, policy_of, regression_problem

# The rule is broken by this client, and not before this exchange.
CLIENT, EXCHANGE = 3, 3


@dataclass(frozen=True)
class BreakingClient:
    """A client half whose plans are changed for one client."""

    half: Any
    change: Callable[[Plan, int], Plan]

    def start(self, catalogue: Catalogue, budgets: Integers) -> Any:
        return self.half.start(catalogue, budgets)

    def select(self, state: Any, draws: ClientDraws) -> tuple[Any, Flags | None]:
        return self.half.select(state, draws)  # type: ignore[no-any-return]

    def plan(self, state: Any, grants: Grants) -> tuple[Any, Plan]:
        state, plan = self.half.plan(state, grants)
        for row in np.flatnonzero(grants.client == CLIENT).tolist() if grants.exchange >= EXCHANGE else []:
            plan = self.change(plan, row)
        return state, plan

    def learn(self, state: Any, plan: Plan, seen: Observations) -> Any:
        return self.half.learn(state, plan, seen)


@dataclass(frozen=True)
class BreakingServer:
    """A server half that grants one client everything, or nothing, or a step that is not a number."""

    half: Any
    grants: Callable[[Flags], Any] = lambda held: held
    step: float | None = None

    def start(self, catalogue: Catalogue) -> Any:
        return self.half.start(catalogue)

    def grant(self, state: Any, wanted: Flags, draws: Draws) -> tuple[Any, Flags, Floats | None]:
        state, held, weights = self.half.grant(state, wanted, draws)
        return state, self.grants(held) if draws.exchange >= EXCHANGE else held, weights

    def learn(self, state: Any, *seen: Any) -> tuple[Any, Floats | float]:
        state, step = self.half.learn(state, *seen)
        return state, step if self.step is None else self.step


def put(name: str, value: Callable[[Plan, int], Any]) -> Callable[[Plan, int], Plan]:
    """A change of one client's row of one of a plan's arrays."""

    def change(plan: Plan, row: int) -> Plan:
        array = np.array(getattr(plan, name))
        array[row] = value(plan, row)
        return replace(plan, **{name: array})

    return change


def outside(plan: Plan, row: int) -> Floats:
    return np.asarray(np.eye(plan.held.shape[1])[np.argmin(plan.held[row])])


PLANS: dict[str, tuple[Callable[[Plan, int], Plan], str]] = {
    "weights that sum to two": (
        put("prediction_weights", lambda plan, row: 2 * plan.prediction_weights[row]),
        "sum to 2",
    ),
    "no weights": (put("prediction_weights", lambda plan, row: 0), "sum to 0, not to 1"),
    "a weight of NaN": (put("prediction_weights", lambda plan, row: np.nan), "negative or not finite"),
    "an infinite weight": (put("prediction_weights", lambda plan, row: np.inf), "negative or not finite"),
    "negative weights": (
        put("prediction_weights", lambda plan, row: plan.prediction_weights[row] * 3 - 2 / plan.held.shape[1]),
        "negative or not finite",
    ),
    "a model that is not held": (put("prediction_weights", outside), "predicts with a model that it does not hold"),
    "everything held": (put("held", lambda plan, row: True), "holds other models than it was granted"),
    "a probability above one": (put("inclusion", lambda plan, row: 1.5), r"not in \[0, 1\]"),
    "a probability of NaN": (put("inclusion", lambda plan, row: np.nan), r"not in \[0, 1\]"),
    "a probability of zero": (put("inclusion", lambda plan, row: 0), "whose inclusion probability is 0"),
    "an infinite update": (put("update_weight", lambda plan, row: np.inf), "update weight is negative or not finite"),
    "a negative update": (put("update_weight", lambda plan, row: -1), "update weight is negative or not finite"),
    "an update of everything": (put("update_weight", lambda plan, row: 1), "a model that it may not upload"),
}


def run(policy: Callable[[Policy, Fleet], Policy], *, loopback: bool, name: str = "ofms-ft") -> None:
    dictionary, stream = regression_problem(clients=4, rounds=6)
    fleet = fleet_for(dictionary, stream, 1)
    built = policy(policy_of(name, fleet, learning_rate=0.5, fine_tuning_rate=0.01), fleet)
    list(make_simulation(built, fleet, dictionary, stream, seed=1, loopback=loopback).exchanges())


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("case", PLANS)
def test_a_plan_that_breaks_a_rule_ends_the_run(case: str, loopback: bool) -> None:
    change, rule = PLANS[case]
    with pytest.raises(ofms.InvalidInput, match=rf"policy = ofms-ft: client {CLIENT}, exchange {EXCHANGE}: .*{rule}"):
        run(lambda policy, _: replace(policy, client=BreakingClient(policy.client, change)), loopback=loopback)


@pytest.mark.parametrize("loopback", [False, True])
def test_a_broken_rule_names_client_and_model(loopback: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*given: Any) -> Policy:
        policy = build_policy(*given)
        return replace(policy, client=BreakingClient(policy.client, put("prediction_weights", outside)))

    monkeypatch.setattr(config, "build_policy", build)
    dictionary, stream = regression_problem(clients=4, rounds=6)
    named = replace(stream, names=("fan", "valve", "motor", "pump"))
    rule = rf"client pump, exchange {EXCHANGE}: it predicts with a model that it does not hold \(net\d\)"
    with pytest.raises(ofms.InvalidInput, match=rule):
        ofms.simulate(models=dictionary, stream=named, budget="3", bandwidth="100%", loopback=loopback)


def everything(held: Flags) -> Flags:
    return np.asarray(held | (np.arange(held.shape[0]) == CLIENT)[:, None])


def nothing(held: Flags) -> Flags:
    return np.asarray(held & (np.arange(held.shape[0]) != CLIENT)[:, None])


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize(
    ("grants", "rule"), [(everything, "bytes, more than its budget of"), (nothing, "a model that it does not hold")]
)
def test_held_sets_stay_within_the_budget(grants: Callable[[Flags], Flags], rule: str, loopback: bool) -> None:
    with pytest.raises(ofms.InvalidInput, match=rf"policy = ofms-ft: client {CLIENT}, exchange {EXCHANGE}: .*{rule}"):
        run(lambda policy, _: replace(policy, server=BreakingServer(policy.server, grants)), loopback=loopback)


@pytest.mark.parametrize("loopback", [False, True])
def test_steps_and_expected_weights_are_checked(loopback: bool) -> None:
    with pytest.raises(ofms.InvalidInput, match="exchange 0: the server's step for model 0 is nan"):
        run(lambda policy, _: replace(policy, server=BreakingServer(policy.server, step=np.nan)), loopback=loopback)
    with pytest.raises(ofms.InvalidInput, match="client 0, exchange 0: its prediction weights sum to 2"):
        run(
            lambda policy, _: replace(
                policy, expected_weights=lambda client, server: 2 * policy.expected_weights(client, server)
            ),
            loopback=loopback,
        )


@pytest.mark.parametrize(
    ("half", "method", "returned", "rule"),
    [
        ("client", "select", "all", "its select returned a str; return a tuple: state, models"),
        ("client", "plan", (None,), "its plan returned 1 values; return a tuple: state, plan"),
        ("client", "plan", (None, 3), "its plan has a int; return a Plan"),
        (
            "server",
            "grant",
            (None, None),
            "its grant returned 2 values; return a tuple: state, models, prediction weights",
        ),
        ("server", "learn", None, "its learn returned a NoneType; return a tuple: state, step"),
    ],
)
def test_what_a_method_must_return_is_named(half: str, method: str, returned: object, rule: str) -> None:
    def changed(policy: Policy, _: Fleet) -> Policy:
        client, server = BreakingClient(policy.client, lambda plan, row: plan), BreakingServer(policy.server)
        object.__setattr__(client if half == "client" else server, method, lambda *given: returned)
        return replace(policy, client=client, server=server)

    with pytest.raises(ofms.InvalidInput, match=f"policy = ofms-ft: {rule}"):
        run(changed, loopback=False)


def test_arrays_of_another_kind_are_named() -> None:
    fleet = fleet_of([2, 2, 2], [4, 6])
    policy = policy_of("ofms-ft", fleet)
    clients, servers = open_sessions(
        replace(policy, server=BreakingServer(policy.server, lambda held: held * 1.0)), fleet
    )
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    for exchange in range(EXCHANGE + 1):
        draws = Draws(0, exchange)
        state, requests = clients.request(state, draws)
        if exchange < EXCHANGE:
            servers.grant(servers.open(), requests, draws)
            continue
        with pytest.raises(ofms.InvalidInput, match=r"the granted set must be an array of flags \[2, 3\], not float64"):
            servers.grant(servers.open(), requests, draws)


def test_working_copies_count() -> None:
    """A policy that adapts copies needs twice the memory."""
    fleet = fleet_of([3, 3, 3], [6, 6])
    _, servers = open_sessions(policy_of("perfedavg", fleet), fleet)
    clients, granting = open_sessions(replace(policy_of("ofms-ft", fleet), local=servers.policy.local), fleet)
    _, requests = clients.request(clients.join(fleet.catalogue, fleet.budgets, np.arange(2)), Draws(0, 0))
    assert requests.wanted.sum(axis=1).tolist() == [2, 2]
    with pytest.raises(ofms.InvalidInput, match="it holds 12 bytes, more than its budget of 6"):
        granting.grant(granting.open(), requests, Draws(0, 0))
