"""The contract that every policy keeps: the checks of `ofms.testing` on generated fleets, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.core.states import flatten, unflatten
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet
from ofms.policies.registry import load_algorithm, setting_names
from ofms.testing.changing_models import check_changing_models
from ofms.testing.checks import (
    check_alone_and_together,
    check_deployable,
    check_exchanges,
    check_observed,
    check_repeatable,
    check_saved_states,
)
from ofms.testing.exchanges import losses_of, new_states
from tests.problems import fleet_of, policy_of

pytestmark = pytest.mark.parametrize("name", list(MODULES))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    costs = draw(st.lists(st.integers(1, 9), min_size=2, max_size=8))
    least = 2 * max(costs)
    budgets = draw(st.lists(st.integers(least, least + 30), min_size=1, max_size=6))
    interval = draw(st.integers(1, 3))
    return fleet_of(costs, budgets, bandwidth=max(budgets) + draw(st.integers(0, 40)), rounds=9, interval=interval)


@settings(max_examples=40)
@given(fleets(), st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 1e6]))
def test_every_exchange_keeps_the_contract(name: str, fleet: Fleet, seed: int, scale: float) -> None:
    check_exchanges(policy_of(name, fleet), fleet, seed, losses_of(fleet, seed, scale))


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_run(name: str, fleet: Fleet, seed: int) -> None:
    check_repeatable(policy_of(name, fleet), fleet, seed)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_clients_request_the_same_alone_and_together(name: str, fleet: Fleet, seed: int) -> None:
    check_alone_and_together(policy_of(name, fleet), fleet, seed)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=10)
def test_states_can_be_saved_and_loaded(name: str, fleet: Fleet, seed: int) -> None:
    check_saved_states(policy_of(name, fleet), fleet, seed)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_only_losses_of_observed_models_are_learnt_from(name: str, fleet: Fleet, seed: int) -> None:
    check_observed(policy_of(name, fleet), fleet, seed)


@given(fleets(), st.integers(0, 2**32))
@settings(max_examples=10)
def test_a_policy_adapts_to_models_that_come_and_go(name: str, fleet: Fleet, seed: int) -> None:
    if name in ("fed-omd", "perfedavg", "fed-poe"):
        return  # Their models are named in their settings.
    check_changing_models(lambda changed: policy_of(name, changed), fleet, seed)


def test_a_client_half_can_be_sent_to_devices(name: str) -> None:
    check_deployable(load_algorithm(name), policy_of(name, fleet_of([4, 3, 2], [8, 9], rounds=5)))


def test_a_state_of_another_shape_is_refused(name: str) -> None:
    fleet = fleet_of([4, 3, 2], [8, 9], rounds=5)
    state, _ = new_states(policy_of(name, fleet), fleet)
    arrays, values = flatten(state)
    some = next(iter(arrays))
    with pytest.raises((ValueError, KeyError)):
        unflatten(state, arrays | {some: np.zeros((9, 9))}, values)


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
