"""The baselines against values computed by hand and against enumeration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.draws import ClientDraws, Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants, Plan, Reports
from ofms.core.typing import Flags, Floats
from ofms.policies.bins import bin_probabilities, pack_bins
from ofms.policies.exp3 import Exp3
from ofms.policies.exp3_client import Exp3Client
from ofms.policies.fleet import Fleet
from ofms.policies.mean_losses import MeanLosses
from ofms.policies.observations import Observations, Recent
from ofms.policies.protocol import Policy
from ofms.policies.session import open_sessions
from ofms.policies.subsets import fill_budgets, holding_probabilities, most_upload, random_subset
from tests.problems import catalogue_of, fleet_of, policy_of


def first_exchange(policy: Policy, fleet: Fleet, losses: Floats) -> tuple[Any, Grants, Plan, Reports, Floats]:
    """Run one exchange: the clients' state, messages of both halves, and the server's step."""
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(fleet.budgets.size))
    server = servers.open()
    client, requests = clients.request(client, Draws(0, 0))
    server, grants = servers.grant(server, requests, Draws(0, 0))
    client, plan = clients.plan(client, grants)
    client, reports = clients.learn(client, plan, np.where(plan.held, losses, np.nan))
    return client, grants, plan, reports, servers.absorb(server, reports)[1]


def test_exp3_over_a_subset_by_hand() -> None:
    rule = Exp3(np.log(2.0), 0.1, "one", horizon=10)
    subset = np.array([[True, False, True, True]])
    # Weights 1, 1/2, 1/4 over the subset: 4/7, 2/7, 1/7; then a tenth of them uniform.
    pmf = rule.probabilities(np.array([[3.0, 0.0, 4.0, 5.0]]), subset)
    assert pmf[0].tolist() == pytest.approx([0.9 * 4 / 7 + 0.1 / 3, 0, 0.9 * 2 / 7 + 0.1 / 3, 0.9 / 7 + 0.1 / 3])
    losses = np.array([[0.5, 9.0, 0.2, 0.1]])
    assert rule.estimates(losses, np.array([2]), pmf, subset)[0].tolist() == pytest.approx([0, 0, 0.2 / pmf[0, 2], 0])
    observed = Exp3(1.0, 0.0, "all", horizon=10).estimates(losses, np.array([2]), pmf, subset)
    assert observed[0].tolist() == [0.5, 0, 0.2, 0.1]


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=8),
    st.lists(st.integers(18, 60), min_size=1, max_size=5),
    st.data(),
)
def test_filled_budgets_have_no_room_left_for_another_model(
    costs: list[int], budgets: list[int], data: st.DataObject
) -> None:
    priority = np.array([data.draw(st.permutations(range(len(costs)))) for _ in budgets], dtype=np.float64)
    storage, room = np.array(costs), np.array(budgets)
    held = fill_budgets(priority, storage, room)
    spent = held @ storage
    assert (spent <= room).all()
    for client in range(len(budgets)):
        outside = storage[~held[client]]
        assert outside.size == 0 or outside.min() > room[client] - spent[client]
        assert spent[client] <= most_upload(catalogue_of(costs), budgets[client])


def test_random_subsets_are_uniform_over_those_that_fit() -> None:
    """Four models of one size, room for two: each of the six pairs for a sixth of the clients."""
    clients = np.arange(30_000)
    priority = Draws(0, 0).table(Purpose.SUBSET, clients, 4)
    held = fill_budgets(priority, np.ones(4, dtype=np.int64), np.full(clients.size, 2))
    _, counts = np.unique(held @ (1 << np.arange(4)), return_counts=True)
    assert counts.size == 6
    # Five standard deviations of a binomial of 30,000 and 1/6.
    assert np.abs(counts - 5000).max() < 5 * np.sqrt(30_000 * 5 / 36)


def test_non_fed_oms_downloads_its_subset_once() -> None:
    fleet = fleet_of([2, 2, 2, 2], [4, 6], rounds=4)
    policy = policy_of("non-fed-oms", fleet)
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
    server = servers.open()
    held = []
    for exchange in range(4):
        client, requests = clients.request(client, Draws(3, exchange))
        server, grants = servers.grant(server, requests, Draws(3, exchange))
        client, plan = clients.plan(client, grants)
        client, _ = clients.learn(client, plan, np.where(plan.held, 0.5, np.nan))
        held.append(plan.held.tolist())
        assert grants.sent.any() == (exchange == 0)
    assert held[0] == held[1] == held[2] == held[3]
    assert plan.held.sum(axis=1).tolist() == [2, 3]


def test_rms_ft_weights_gradients_by_its_setting() -> None:
    fleet = fleet_of([1, 1, 1, 1], [2, 2], bandwidth=2)
    for weight, expected in (("one", 2.0), ("inverse", 4.0), ("use", 1.0)):
        policy = policy_of("rms-ft", fleet, gradient_weight=weight, server_step="N")
        _, grants, plan, _, step = first_exchange(policy, fleet, np.full((2, 4), 0.5))
        assert grants.groups == 2
        # Two groups of one client each; another factor of 4 models over 2 held, or by use of 1 over 2 held.
        assert set(plan.update_weight[plan.update_weight > 0]) == {expected}
        assert (plan.update_weight > 0).sum() == 2
        assert step.tolist() == [1.0] * 4
    with pytest.raises(InvalidInput, match="gradient_weight = twice"):
        policy_of("rms-ft", fleet, gradient_weight="twice")


@dataclass(frozen=True, eq=False)
class _AllOrders(ClientDraws):
    """One client for each order in which a subset can be filled."""

    def table(self, purpose: Purpose, columns: int) -> Floats:
        assert purpose == Purpose.SUBSET
        return np.array(list(permutations(range(columns))), dtype=np.float64)


@pytest.mark.parametrize("budget", [11, 12, 14])
def test_rms_ft_weighs_gradients_to_one_in_expectation_whatever_the_costs(budget: int) -> None:
    """Over all orders, as the weights (2r2) of OFMS-FT over its draws: RMS-FT differs in the PMF only."""
    costs, orders = [7, 1, 4, 2, 2], 120
    fleet = fleet_of(costs, [budget] * orders, bandwidth=orders * budget)
    client = policy_of("rms-ft", fleet).client
    state, wanted = client.select(
        client.start(fleet.catalogue, fleet.budgets), _AllOrders(Draws(0, 0), np.arange(orders))
    )
    assert wanted is not None
    for groups in (1, 3):
        _, plan = client.plan(state, _granted(wanted, groups))
        assert (plan.update_weight.mean(axis=0) / groups).tolist() == pytest.approx([1.0] * 5, rel=1e-12)
        assert ((plan.update_weight > 0) == wanted).all()
    # A large model is held less often than a small one: dividing by the share of models held would favour the small.
    assert not np.allclose((wanted / wanted.mean(axis=1, keepdims=True)).mean(axis=0), 1, atol=0.02)


def _granted(held: Flags, groups: int) -> Grants:
    clients, models = held.shape
    uploads, versions = np.ones(clients, dtype=np.bool_), np.zeros(models, dtype=np.int64)
    return Grants(0, np.arange(clients), held, held, None, uploads, groups, versions)


def test_rms_ft_counts_the_places_at_which_a_model_still_fits() -> None:
    """Costs 4, 3, 2 and memory 5, in the order 3, 2, 4."""
    found = holding_probabilities(np.array([[2.0, 0.0, 1.0]]), np.array([4, 3, 2]), np.array([5]))
    # The 4 among (3, 2): first of three. The 3 among (2, 4): first; after the 2 (room 3); last (room 3, the 4 skipped).
    # The 2 among (3, 4): first; after the 3 (room 2); last (room 2, the 4 skipped).
    assert found.tolist() == [[1 / 3, 1.0, 1.0]]


def test_b_fed_omft_gives_all_clients_a_subset_that_fits_the_smallest_budget() -> None:
    fleet = fleet_of([2, 2, 2, 2, 2], [4, 10, 6])
    _, grants, plan, _, step = first_exchange(policy_of("b-fed-omft", fleet), fleet, np.full((3, 5), 0.5))
    assert (grants.held == grants.held[0]).all()
    assert grants.held[0].sum() == 2
    assert (plan.update_weight == grants.held * grants.groups).all()
    assert step.tolist() == pytest.approx([1 / 3] * 5)
    drawn = random_subset(fleet.catalogue.storage, np.array([4]), Draws(0, 0).of(np.array([0])))
    assert grants.held[:1].tolist() == drawn.tolist(), "by the documented draw"
    named = policy_of("b-fed-omft", fleet, subset=["model4", 1])
    assert first_exchange(named, fleet, np.full((3, 5), 0.5))[1].held[2].tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("name", ["non-fed-oms", "b-fed-omft"])
@pytest.mark.parametrize(
    ("subset", "message"),
    [
        ([0, 1, 2], r"subset = \[0, 1, 2\]: it takes 6 bytes and a client has 4"),
        ([], "at least one"),
        ("some", "subset = some"),
        ([7], "model = 7"),
    ],
)
def test_an_invalid_subset_is_refused(name: str, subset: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        policy_of(name, fleet_of([2, 2, 2, 2], [4, 10]), subset=subset)


def test_budgeted_experts_hold_the_bin_of_the_drawn_model() -> None:
    """Bins of [3, 2, 1] and [2]; q is the sum of a bin's probabilities, and an observed loss is divided by it."""
    fleet = fleet_of([3, 2, 2, 1], [6])
    policy = policy_of("budgeted-experts", fleet)
    state, _, plan, reports, _ = first_exchange(policy, fleet, np.full((1, 4), 0.5))
    assert plan.inclusion[0].tolist() == [0.75, 0.75, 0.25, 0.75]
    assert plan.held[0].tolist() in ([True, True, False, True], [False, False, True, False])
    assert state.policy.cumulative_losses[0].tolist() == pytest.approx(
        (plan.held[0] * 0.5 / plan.inclusion[0]).tolist()
    )
    assert not reports.updated.any()
    # ln K/η + η R T/2, least at the tuned rate: √(2 R T ln K).
    assert policy.bound is not None
    assert policy.bound.tolist() == pytest.approx([np.sqrt(2 * 2 * fleet.horizon * np.log(4))])
    with pytest.raises(InvalidInput, match="prediction = all: use one or mean"):
        policy_of("budgeted-experts", fleet, prediction="all")


def test_budgeted_experts_can_predict_with_the_mean_of_a_bin() -> None:
    fleet = fleet_of([3, 2, 2, 1], [6])
    policy = policy_of("budgeted-experts", fleet, prediction="mean", learning_rate=1.0)
    clients, _ = open_sessions(policy, fleet)
    _, _, plan, _, _ = first_exchange(policy, fleet, np.full((1, 4), 0.5))
    assert plan.prediction_weights[0].tolist() == pytest.approx((plan.held[0] / plan.held[0].sum()).tolist())
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(1))
    learnt = replace(state.policy, cumulative_losses=np.array([[0.0, 1.0, 2.0, 3.0]]))
    state = replace(state, policy=learnt)
    weights = np.exp(-np.array([0.0, 1.0, 2.0, 3.0]))
    mean, seeds = np.zeros(4), 400
    for seed in range(seeds):
        drawn, requests = clients.request(state, Draws(seed, 0))
        held = requests.wanted
        grants = Grants(0, np.arange(1), held, held, None, np.array([False]), 1, np.zeros(4, np.int64))
        prediction_weights = clients.plan(drawn, grants)[1].prediction_weights[0]
        assert prediction_weights.sum() == pytest.approx(1)
        assert prediction_weights[held[0]].tolist() == pytest.approx(
            (weights[held[0]] / weights[held[0]].sum()).tolist()
        )
        mean += prediction_weights / seeds
    assert mean.tolist() == pytest.approx((weights / weights.sum()).tolist(), abs=0.05)


@given(
    costs=st.lists(st.integers(1, 9), min_size=2, max_size=12),
    losses=st.lists(st.floats(0, 30), min_size=12, max_size=12),
    room=st.integers(0, 30),
)
def test_probabilities_over_bin_probabilities_sum_to_the_number_of_bins(
    costs: list[int], losses: list[float], room: int
) -> None:
    """Σ_k p_k/q_k = R, on which the regret of budgeted experts depends; every bin fits the budget."""
    catalogue = fleet_of(costs, [100]).catalogue
    budget = np.array([max(costs) + room])
    place, bins = pack_bins(catalogue, budget)
    assert np.bincount(place[0], weights=costs).max() <= budget[0]
    weights = np.exp(-np.array([losses[: len(costs)]]))
    pmf = weights / weights.sum()
    assert (pmf / bin_probabilities(pmf, place, int(bins[0]))).sum() == pytest.approx(bins[0])


def test_upload_groups_override_the_bandwidth() -> None:
    fleet = fleet_of([2, 2], [4] * 6, bandwidth=4)
    for groups, uploading in ((1, 6), (2, 3), (None, 2)):
        policy = policy_of("fed-omd", fleet, upload_groups=groups)
        grants = first_exchange(policy, fleet, np.full((6, 2), 0.5))[1]
        assert grants.uploads.sum() == uploading
    with pytest.raises(InvalidInput, match="upload_groups = 0"):
        policy_of("fed-omd", fleet, upload_groups=0)


def test_plans_of_budgeted_experts_by_hand() -> None:
    """Probabilities 0.1, 0.3, 0.6; the first two models are a bin of probability 0.4, the third is drawn never."""
    fleet = fleet_of([1, 1, 2], [3, 3])
    held = np.array([[True, True, False]] * 2)
    grants = Grants(0, np.arange(2), held, held, None, np.zeros(2, dtype=np.bool_), 1, fleet.catalogue.version)
    plans = {}
    for prediction in ("one", "mean"):
        client: Any = policy_of("budgeted-experts", fleet, prediction=prediction).client
        state = replace(
            client.start(fleet.catalogue, fleet.budgets),
            pmf=np.array([[0.1, 0.3, 0.6]] * 2),
            inclusion=np.array([[0.4, 0.4, 0.6]] * 2),
            chosen=np.array([1, 0]),
        )
        plans[prediction] = client.plan(state, grants)[1].prediction_weights
    assert plans["one"].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert plans["mean"] == pytest.approx(np.array([[0.25, 0.75, 0]] * 2))


def test_the_model_that_explores_is_the_best_held_one_and_then_the_committed_one() -> None:
    """Mean losses 3, 1, 2; the first client has committed itself to model 0, the second holds models 0 and 2."""
    fleet = fleet_of([1, 1, 1], [2, 2])
    policy: Any = policy_of("explore-then-commit", fleet)
    state = replace(
        policy.client.start(fleet.catalogue, fleet.budgets),
        losses=MeanLosses(np.array([[3.0, 1.0, 2.0]] * 2), np.ones((2, 3), dtype=np.int64)),
        committed=np.array([True, False]),
    )
    held = np.array([[True, False, False], [True, False, True]])
    grants = Grants(0, np.arange(2), held, held, None, np.zeros(2, dtype=np.bool_), 1, fleet.catalogue.version)
    after, plan = policy.client.plan(state, grants)
    assert plan.prediction_weights.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert policy.expected_weights(after, None).tolist() == plan.prediction_weights.tolist()


def test_the_leader_that_predicts_is_kept_and_mab_moves_no_model() -> None:
    """Mean losses 3, 1, 2: the best of the held models 0 and 2."""
    fleet = fleet_of([1, 1, 1], [2, 2])
    policy: Any = policy_of("follow-the-leader", fleet)
    losses = MeanLosses(np.array([[3.0, 1.0, 2.0]] * 2), np.ones((2, 3), dtype=np.int64))
    held = np.array([[True, False, True]] * 2)
    grants = Grants(0, np.arange(2), held, held, None, np.zeros(2, dtype=np.bool_), 1, fleet.catalogue.version)
    state, plan = policy.client.plan(
        replace(policy.client.start(fleet.catalogue, fleet.budgets), losses=losses), grants
    )
    assert plan.prediction_weights.tolist() == [[0, 0, 1]] * 2
    assert policy.expected_weights(state, None).tolist() == [[0, 0, 1]] * 2
    step = first_exchange(policy_of("mab", fleet), fleet, np.ones((2, 3)))[-1]
    assert not np.any(step)


@pytest.mark.parametrize("feedback", ["all", "one"])
def test_clients_with_exp3_by_hand(feedback: Any) -> None:
    """Models of 1, 1 and 2 bytes, memory for 3: the first two and no third. At η = ln 3, losses 0 and 1 are 3/4, 1/4.

    With feedback of all held models, their losses are added; else that of the chosen one, over its probability.
    """
    fleet = fleet_of([1, 1, 2], [3, 3])
    client = Exp3Client(Exp3(np.log(3), 0.0, feedback, None), subset="first")
    state = client.start(fleet.catalogue, fleet.budgets)
    assert state.wanted.tolist() == [[True, True, False]] * 2
    assert state.pmf.tolist() == [[1 / 3] * 3] * 2
    state, wanted = client.select(state, Draws(3, 5).of(np.array([4, 7])))
    assert (wanted is state.wanted, wanted.tolist()) == (True, [[True, True, False]] * 2)
    assert state.uniform.tolist() == Draws(3, 5).uniform(Purpose.MODEL, np.array([4, 7])).tolist()
    state = replace(state, cumulative_losses=np.array([[0.0, 1.0, 9.0]] * 2), uniform=np.array([0.7, 0.8]))
    grants = Grants(5, np.arange(2), wanted, wanted, None, np.array([True, False]), 2, fleet.catalogue.version)
    state, plan = client.plan(state, grants)
    assert plan.inclusion == pytest.approx(np.array([[0.75, 0.25, 0]] * 2))
    assert plan.prediction_weights.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert plan.update_weight.tolist() == [[2, 2, 0], [0, 0, 0]]
    seen = Observations(np.array([[0.5, 0.25, np.nan]] * 2), Recent.none(2, 3))
    learnt = client.learn(state, plan, seen).cumulative_losses
    added = [[0.5, 0.25, 0]] * 2 if feedback == "all" else [[0.5 / 0.75, 0, 0], [0, 1, 0]]
    assert learnt == pytest.approx(np.array([[0, 1, 9]] * 2) + added)
