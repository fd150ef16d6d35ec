"""Equations of the policies against values computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Reports
from ofms.policies import ofms_ft
from ofms.policies.session import expected_weights, open_sessions
from tests.problems import fleet_of, policy_of


def test_a_round_of_ofms_ft_by_hand() -> None:
    """Three models of cost 1, budget 2: two clusters of one model each, whatever is chosen."""
    fleet = fleet_of([1, 1, 1], [2, 2], bandwidth=2, rounds=10)
    policy = policy_of("ofms-ft", fleet, learning_rate=0.5, fine_tuning_rate=0.1)
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    server = servers.open()
    draws = Draws(3, 0)
    client, requests = clients.request(client, draws)
    assert requests.wanted.sum(axis=1).tolist() == [2, 2]
    server, grants = servers.grant(server, requests, draws)
    assert (grants.groups, int(grants.uploads.sum())) == (2, 1)
    client, plan = clients.plan(client, grants)
    # q = 1/3 (1 - 1/2) + 1/2 = 2/3; update_weight = α/q = 3.
    assert plan.inclusion == pytest.approx(2 / 3)
    assert plan.update_weight[grants.uploads][0][plan.held[grants.uploads][0]].tolist() == pytest.approx([3.0, 3.0])
    client, reports = clients.learn(client, plan, np.where(plan.held, 0.4, np.nan))
    assert client.policy.cumulative_losses[plan.held] == pytest.approx(0.6)
    assert client.policy.cumulative_losses[~plan.held].tolist() == [0.0, 0.0]
    client, _ = clients.request(client, Draws(3, 1))
    weight = np.exp(-0.5 * 0.6)
    assert np.sort(expected_weights(policy, client, server)[0]) == pytest.approx(
        np.array([weight, weight, 1]) / (1 + 2 * weight)
    )
    server, step = servers.absorb(server, reports)
    assert step.tolist() == [0.5, 0.5, 0.5]
    assert server.version.tolist() == reports.updated.any(axis=0).astype(int).tolist()


def test_models_are_held_with_their_inclusion_probability() -> None:
    """Over many exchanges, model, cluster and group are drawn independently of each other."""
    fleet = fleet_of([3, 2, 2, 1], [6, 6, 6, 6], bandwidth=12, rounds=4000)
    policy = policy_of("ofms-ft", fleet)
    clients, servers = open_sessions(policy, fleet)
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(4))
    losses = np.tile([0.0, 1.0, 2.0, 3.0], (4, 1))
    learnt = replace(state.policy, cumulative_losses=losses, learning_rate=np.full(4, 0.5))
    state = replace(state, policy=learnt)
    server = servers.open()
    held, weight, pairs = np.zeros(4), np.zeros(4), np.zeros((4, 2))
    exchanges = 4000
    for exchange in range(exchanges):
        draws = Draws(1, exchange)
        drawn, requests = clients.request(state, draws)
        _, grants = servers.grant(server, requests, draws)
        _, plan = clients.plan(drawn, grants)
        held += plan.held.mean(axis=0) / exchanges
        weight += plan.update_weight.mean(axis=0) / exchanges
        pairs[:, 0] += grants.uploads / exchanges
        pairs[:, 1] += (grants.uploads & (drawn.policy.chosen == 0)) / exchanges
    assert held == pytest.approx(drawn.policy.inclusion[0], abs=0.02)
    assert weight == pytest.approx(np.ones(4), abs=0.06), "the gradient's weight is one in expectation"
    # Whether a client uploads does not depend on its chosen model.
    assert pairs[:, 1] == pytest.approx(pairs[:, 0] * expected_weights(policy, state, server)[0, 0], abs=0.03)


def test_the_policy_caps_its_importance_weights() -> None:
    fleet = fleet_of([1] * 20, [2] * 3)
    for cap, most in ((None, 19.0), (4.0, 4.0)):
        policy = policy_of("ofms-ft", fleet, importance_cap=cap)
        clients, servers = open_sessions(policy, fleet)
        state = clients.join(fleet.catalogue, fleet.budgets, np.arange(3))
        cumulative = np.full((3, 20), 1e6)
        cumulative[:, 0] = 0
        state, requests = clients.request(
            replace(state, policy=replace(state.policy, cumulative_losses=cumulative)), Draws(0, 0)
        )
        _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
        assert clients.plan(state, grants)[1].update_weight.max() == pytest.approx(most)


def test_the_tuned_fine_tuning_rate_depends_on_groups_clusters_and_interval() -> None:
    """Twenty equal models, memory for 5, bandwidth for half: α = 2, μ = 5, n = 4, T = 200."""
    fleet = fleet_of([1] * 20, [5] * 10, bandwidth=25, rounds=200, interval=4)
    local = policy_of("ofms-ft", fleet).local
    assert local is not None
    assert local.rate == pytest.approx(1 / np.sqrt(2 * 5 * 4 * 200))


def test_updates_of_followers_are_weighted_by_the_number_of_groups() -> None:
    fleet = fleet_of([2, 2], [4] * 6, bandwidth=4)
    policy = policy_of("fed-omd", fleet)
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(6))
    client, requests = clients.request(client, Draws(0, 0))
    server, grants = servers.grant(servers.open(), requests, Draws(0, 0))
    _, plan = clients.plan(client, grants)
    assert (grants.groups, int(grants.uploads.sum())) == (3, 2)
    assert plan.update_weight[grants.uploads, 0].tolist() == [3.0, 3.0]
    assert servers.absorb(server, clients.learn(client, plan, plan.prediction_weights)[1])[1][0] == pytest.approx(1 / 6)


def test_mabs_tuned_rate() -> None:
    fleet = fleet_of([1] * 4, [2], rounds=100)
    server: Any = policy_of("mab", fleet).server
    assert server.learning_rate == pytest.approx(np.sqrt(2 * np.log(4) / (4 * 100)))


@pytest.mark.parametrize(("step", "expected"), [(1, 0.25), ("N", 1.0), (2.0, 0.5)])
def test_the_servers_step_is_a_multiplier_of_the_mean(step: float | str, expected: float) -> None:
    fleet = fleet_of([1, 1, 1], [2] * 4)
    policy = policy_of("ofms-ft", fleet, server_step=step)
    clients, servers = open_sessions(policy, fleet)
    server = servers.open()
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(4))
    _, requests = clients.request(client, Draws(0, 0))
    server, _ = servers.grant(server, requests, Draws(0, 0))
    reports = Reports(0, np.arange(4), None, np.zeros((4, 3), dtype=np.bool_))
    assert servers.absorb(server, reports)[1].tolist() == [expected] * 3


def test_rates_are_tuned_for_each_budget() -> None:
    """μ = 19 and 5 for twenty equal models and budgets of 2 and 5."""
    fleet = fleet_of([1] * 20, [2, 5], rounds=200)
    policy = policy_of("ofms-ft", fleet)
    clients, _ = open_sessions(policy, fleet)
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    expected = [np.sqrt(np.log(20) / (mu * 200)) for mu in (19, 5)]
    assert state.policy.learning_rate == pytest.approx(expected)


def test_the_sharp_rate_counts_the_clusters_and_the_models() -> None:
    """M = 19 and 5, so G = 20·19/38 = 10 and 20·5/24."""
    fleet = fleet_of([1] * 20, [2, 5], rounds=100, interval=2)
    policy = policy_of("ofms-ft", fleet, learning_rate="sharp")
    clients, _ = open_sessions(policy, fleet)
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    assert state.policy.learning_rate == pytest.approx([np.sqrt(2 * np.log(20) / (g * 200)) for g in (10, 100 / 24)])


def test_by_use_a_gradient_counts_the_probability_that_its_model_predicts() -> None:
    """Three equal models, memory for two, so two clusters: p = (½, ¼, ¼) and q = p + (1 - p)/2 = (¾, ⅝, ⅝)."""
    fleet = fleet_of([1] * 3, [2] * 2, bandwidth=2)
    policy = policy_of("ofms-ft", fleet, gradient_weight="use", importance_cap=1.0, learning_rate=1.0)
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    learnt = np.tile([0.0, np.log(2), np.log(2)], (2, 1))
    client = replace(client, policy=replace(client.policy, cumulative_losses=learnt))
    client, requests = clients.request(client, Draws(0, 0))
    # A late label between request and plan: the weights are those of the draw.
    client = replace(client, policy=replace(client.policy, cumulative_losses=np.zeros((2, 3))))
    _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
    _, plan = clients.plan(client, grants)
    expected = grants.groups * np.array([2 / 3, 2 / 5, 2 / 5]) * (grants.held & grants.uploads[:, None])
    assert grants.groups == 2
    assert plan.update_weight == pytest.approx(expected)


def test_b_fed_omft_by_use_weights_gradients_by_its_pmf() -> None:
    fleet = fleet_of([1, 1, 1, 1], [2, 2])
    policy = policy_of("b-fed-omft", fleet, gradient_weight="use", learning_rate=1.0, feedback="all")
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    client = replace(client, policy=replace(client.policy, cumulative_losses=np.tile(np.arange(4.0), (2, 1))))
    client, requests = clients.request(client, Draws(0, 0))
    _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
    client, plan = clients.plan(client, grants)
    assert plan.update_weight == pytest.approx(client.policy.pmf)
    assert plan.update_weight.sum(axis=1) == pytest.approx(1)


def test_the_tuned_fine_tuning_rate_by_use_has_no_clusters() -> None:
    fleet = fleet_of([1] * 20, [5] * 4, bandwidth=10, rounds=200, interval=2)
    local = policy_of("ofms-ft", fleet, gradient_weight="use").local
    assert local is not None
    assert local.rate == pytest.approx(1 / np.sqrt(2 * 2 * 200))


def test_the_published_rates() -> None:
    fleet = fleet_of([1] * 20, [5] * 3, rounds=200)
    policy = policy_of("ofms-ft", fleet, learning_rate="10/sqrt(T)", fine_tuning_rate="0.001/sqrt(T)")
    clients, _ = open_sessions(policy, fleet)
    assert clients.join(fleet.catalogue, fleet.budgets, np.arange(3)).policy.learning_rate == pytest.approx(0.7071068)
    assert policy.local is not None
    assert policy.local.rate == pytest.approx(7.071068e-5)


def test_a_frozen_dictionary_is_never_uploaded() -> None:
    fleet = fleet_of([1] * 3, [2] * 4)
    policy = policy_of("ofms-ft", fleet, fine_tuning_rate=0)
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(4))
    client, requests = clients.request(client, Draws(0, 0))
    _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
    assert not clients.plan(client, grants)[1].update_weight.any()


def test_bounds_are_given_only_where_the_theorems_apply() -> None:
    fleet = fleet_of([1] * 20, [5] * 3, rounds=200)
    frozen = policy_of("ofms-ft", fleet, learning_rate=0.05, fine_tuning_rate=0)
    # ln 20/0.05 + 0.05 · G · 200/2, G = 20 · 5/24
    assert frozen.bound == pytest.approx([80.74797880] * 3)
    tuned = policy_of("ofms-ft", fleet, learning_rate=0.05)
    # The best of models that react to draws: √(2 · 4 · 200 · ln 20) + 4 · ln 20/3 more.
    assert tuned.bound == pytest.approx([80.74797880 + 69.2327430 + 3.9943097] * 3)
    raw = policy_of("ofms-ft", fleet, loss_bound="raw")
    assert raw.bound is None
    assert "(a1)" in raw.not_covered
    assert policy_of("mab", fleet).bound is None


def test_mabs_server_learns_from_the_mean_loss_of_all_clients() -> None:
    fleet = fleet_of([1, 1], [2] * 2)
    policy = policy_of("mab", fleet, learning_rate=1.0, exploration=0.5)
    clients, servers = open_sessions(policy, fleet)
    server = servers.open()
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    client, requests = clients.request(client, Draws(0, 0))
    server, grants = servers.grant(server, requests, Draws(0, 0))
    chosen = int(grants.held[0].argmax())
    assert grants.held.sum(axis=0)[chosen] == 2
    losses = np.full((2, 2), np.nan)
    losses[:, chosen] = [0.2, 0.6]
    client, reports = clients.learn(client, clients.plan(client, grants)[1], losses)
    server, _ = servers.absorb(server, reports)
    assert server.policy.cumulative_losses[chosen] == pytest.approx(0.4 / 0.5)
    server, _ = servers.grant(server, requests, Draws(0, 1))
    weight = np.exp(-0.8)
    assert server.policy.pmf[chosen] == pytest.approx(0.5 * weight / (1 + weight) + 0.25)


def test_single_model_policies_take_a_name_or_an_index() -> None:
    fleet = fleet_of([1, 1, 1], [2] * 2)
    assert policy_of("fed-omd", fleet, model="model2").server.model == 2  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="model = 3"):
        policy_of("perfedavg", fleet, model=3)


def test_perfedavg_needs_memory_for_two_copies() -> None:
    fleet = fleet_of([6, 4, 2], [10])
    assert policy_of("perfedavg", fleet, model=1).local is not None
    with pytest.raises(InvalidInput, match="2 copies of model0 take 12 bytes"):
        policy_of("perfedavg", fleet, model=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0),
        ("warm_up", -1),
        ("importance_cap", 0.0),
        ("server_step", "sum"),
        ("server_step", float("nan")),
        ("loss_bound", "soft"),
    ],
)
def test_an_invalid_setting_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"{field} = {value}"):
        policy_of("ofms-ft", fleet_of([1, 1, 1], [2]), **{field: value})


def test_every_open_setting_of_the_paper_has_a_name() -> None:
    assert set(ofms_ft.algorithm.settings.__dataclass_fields__) == {
        *("learning_rate", "fine_tuning_rate", "server_step", "importance_cap"),
        *("loss_bound", "window", "warm_up", "gradient_weight"),
    }
