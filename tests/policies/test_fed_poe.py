"""Fed-POE against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.policies.changes import Adapting, Change
from ofms.policies.exp3 import Exp3
from ofms.policies.mixtures import draw_with_replacement, hedge_weights, mean_loss
from ofms.policies.session import open_sessions
from tests.problems import fleet_of, policy_of


def test_two_exchanges_by_hand() -> None:
    """Model 0 is federated, 1 local, 2 and 3 are stored; M = 2; with η = ln 2, a loss of 1 halves a weight."""
    fleet = fleet_of([1, 1, 1, 1], [4] * 200, rounds=4)
    policy = policy_of("fed-poe", fleet, learning_rate=float(np.log(2)))
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(200))
    server = servers.open()
    client, requests = clients.request(client, Draws(0, 0))
    server, grants = servers.grant(server, requests, Draws(0, 0))
    client, plan = clients.plan(client, grants)
    assert plan.inclusion.tolist() == [[1, 1, 0.75, 0.75]] * 200
    both = plan.held[:, 2:].all(axis=1)
    # Two equal draws in half of the cases: five standard deviations of a binomial of 200 and 1/2.
    assert abs(both.sum() - 100) < 36
    assert plan.held[:, 2:].any(axis=1).all()
    assert plan.prediction_weights[both].tolist() == [[0.25] * 4] * int(both.sum())
    assert (plan.prediction_weights[~both, 2:].max(axis=1) == 0.5).all()

    losses = np.broadcast_to([1.0, 0.0, 3.0, 0.75], plan.held.shape)
    client, reports = clients.learn(client, plan, np.where(plan.held, losses, np.nan))
    assert reports.updated.any(axis=0).tolist() == [True, False, False, False], "only the federated model is uploaded"
    state = client.policy
    assert state.model_losses[both].tolist() == pytest.approx(np.tile([1.0, 0.0, 4.0, 1.0], (both.sum(), 1)))
    assert state.mixture_losses[both].tolist() == pytest.approx(np.tile([0.5, 1.875], (both.sum(), 1)))
    server, _ = servers.absorb(server, reports)

    client, requests = clients.request(client, Draws(0, 1))
    server, grants = servers.grant(server, requests, Draws(0, 1))
    client, plan = clients.plan(client, grants)
    # Over the stored ones w is 2^-4 and 2^-1: p = 1/9 and 8/9.
    expected = [1, 1, 1 - (8 / 9) ** 2, 1 - (1 / 9) ** 2]
    assert plan.inclusion[both].tolist() == pytest.approx(np.tile(expected, (both.sum(), 1)))
    # a = 1/3 and b = 2/3; c and d are 2^-0.5 and 2^-1.875, normalised.
    share = 1 / (1 + 2**-1.375)
    assert plan.prediction_weights[both, 0] == pytest.approx(share / 3)
    assert plan.prediction_weights[both, 1] == pytest.approx(share * 2 / 3)
    mixed = both & plan.held[:, 2:].all(axis=1)
    assert mixed.any()
    assert plan.prediction_weights[mixed, 2] == pytest.approx((1 - share) / 9)
    assert plan.prediction_weights.sum(axis=1) == pytest.approx(1)
    assert policy.expected_weights(client.policy, None) is plan.prediction_weights
    assert policy.not_covered == "its theorem is for its own mixture, not for the best model of a dictionary"


def test_draws_fit_the_memory_beside_both_fine_tuned_models() -> None:
    """Of 9 bytes, 3 + 1 hold the federated and the local model; the largest stored one takes 2: two draws."""
    fleet = fleet_of([3, 1, 2, 2, 1], [9, 6, 12])
    clients, _ = open_sessions(policy_of("fed-poe", fleet), fleet)
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(3))
    assert state.policy.trials.tolist() == [2, 1, 4]
    only = fleet_of([3, 1], [9])
    alone, _ = open_sessions(policy_of("fed-poe", only, model="model1", local_model=0), only)
    assert alone.join(only.catalogue, only.budgets, np.arange(1)).policy.trials.tolist() == [0]


def test_groups_depend_on_the_upload_of_the_federated_model_alone() -> None:
    fleet = fleet_of([2, 2, 2, 2], [8] * 6, bandwidth=6)
    clients, servers = open_sessions(policy_of("fed-poe", fleet), fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(6))
    client, requests = clients.request(client, Draws(0, 0))
    _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
    assert (grants.groups, grants.uploads.sum()) == (2, 3)
    plan = clients.plan(client, grants)[1]
    assert sorted(plan.update_weight[:, 0].tolist()) == [0, 0, 0, 2, 2, 2]
    assert not plan.update_weight[:, 1:].any()


def test_the_local_model_is_not_the_federated_one() -> None:
    with pytest.raises(InvalidInput, match="local_model = model0: it is the federated model"):
        policy_of("fed-poe", fleet_of([2, 2, 2], [6]), local_model="model0")
    with pytest.raises(InvalidInput, match="model = 7"):
        policy_of("fed-poe", fleet_of([2, 2, 2], [6]), local_model=7)


def test_a_probability_that_is_lost_in_rounding_is_not_divided_by_zero() -> None:
    pmf = np.array([[1e-30, 1.0]])
    _, inclusion = draw_with_replacement(pmf, np.array([[0.5, 0.5]]), np.array([2]))
    assert inclusion.tolist() == [[1e-30, 1.0]]
    assert draw_with_replacement(pmf, np.array([[0.5]]), np.array([0]))[0].any() == np.False_


def test_a_mixture_whose_weights_underflowed_has_the_plain_mean_as_its_loss() -> None:
    losses, members = np.array([[1.0, 3.0, 9.0]]), np.array([[True, True, False]])
    assert mean_loss(losses, np.array([[0.0, 0.0, 1.0]]), members).tolist() == [2.0]
    assert mean_loss(losses, np.zeros((1, 3)), np.zeros((1, 3), dtype=np.bool_)).tolist() == [0.0]


def test_a_new_model_joins_with_the_mean_weight_and_mixtures_keep_theirs() -> None:
    """Weights 1/2, 1/8, 1/4 at η = ln 2: a model between the kept ones 1 and 2 joins with (1/8 + 1/4)/2 = 2^-2.415."""
    fleet = fleet_of([1, 1, 1], [4, 4])
    rate = float(np.log(2))
    client = policy_of("fed-poe", fleet, learning_rate=rate).client
    assert isinstance(client, Adapting)
    before = replace(
        client.start(fleet.catalogue, fleet.budgets),
        model_losses=np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]]),
        mixture_losses=np.array([[0.5, 0.25], [1.0, 2.0]]),
    )
    after = fleet_of([1, 1, 2], [5, 9])
    change = Change(after.catalogue, after.budgets, np.array([1, -1, 2]), same_models=False)
    state = client.adapt(before, change)
    assert state.model_losses == pytest.approx(np.array([[3.0, -np.log2(3 / 16), 2.0], [0.0, 0.0, 0.0]]))
    assert state.mixture_losses.tolist() == [[0.5, 0.25], [1.0, 2.0]]
    assert state.trials.tolist() == [1, 3], "draws of two bytes beside two models of one"


def test_without_a_trial_nothing_is_drawn_and_one_trial_draws_with_the_pmf() -> None:
    pmf, numbers = np.array([[1e-30, 1.0], [0.25, 0.75]]), np.array([[0.5], [0.1]])
    drawn, inclusion = draw_with_replacement(pmf, numbers, np.array([0, 1]))
    assert drawn.tolist() == [[False, False], [True, False]]
    assert inclusion.tolist() == [[0, 0], [0.25, 0.75]]
    assert draw_with_replacement(pmf, numbers, np.array([1, 0]))[1].tolist() == [[1e-30, 1.0], [0, 0]]


def test_weights_of_clients_do_not_depend_on_the_losses_of_others() -> None:
    """After 1e6 more rounds of losses, a client's weights are the same; nothing is left of exp(-1e6) by itself."""
    losses = np.array([[0.0, np.log(3.0), 5.0], [1e6, 1e6 + np.log(3.0), 0.0]])
    subset = np.array([[True, True, False]] * 2)
    assert hedge_weights(losses, 1.0, subset) == pytest.approx(np.array([[0.75, 0.25, 0]] * 2))
    rule = Exp3(1.0, 0.0, "one", horizon=None)
    assert rule.probabilities(losses, subset) == pytest.approx(np.array([[0.75, 0.25, 0]] * 2))
