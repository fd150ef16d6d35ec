"""Rates and bounds of a fleet in which everything differs, worked out by hand; and how close regret comes to its bound.

Five models of 4, 3, 2, 2 and 1 bytes; a client with 7 bytes and two with 9; exchanges of n = 3 rounds, T = 10. With 7
bytes the others of a chosen model take 3, 3, 2, 2 and 2 clusters (of 3, 4, 5, 5, 6 bytes), with 9 bytes always 2:
max_j m = μ = 3 and 2, on average 7/3. A client holds at most 9 bytes, so that two clients can upload at a time with a
bandwidth of 20 bytes: α = 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ofms.core.draws import ClientDraws, Draws, Purpose
from ofms.core.packing import partition_models
from ofms.core.regret_bounds import client_bound, comparator_deviation, server_bound, server_bound_by_use
from ofms.core.typing import Floats
from ofms.policies.exp3 import Exp3
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft_theory import largest_group_count, mean_fewest_clusters
from ofms.policies.session import expected_weights, open_sessions
from tests.problems import fleet_of, policy_of

LN5 = math.log(5)


def unequal() -> Fleet:
    return fleet_of([4, 3, 2, 2, 1], [7, 9, 9], bandwidth=20, rounds=10, interval=3)


def rates(fleet: Fleet, rate: str) -> list[float]:
    clients, _ = open_sessions(policy_of("ofms-ft", fleet, learning_rate=rate), fleet)
    found: list[float] = clients.join(fleet.catalogue, fleet.budgets, np.arange(3)).policy.learning_rate.tolist()
    return found


def test_the_fleet_is_as_described() -> None:
    fleet = unequal()
    table = partition_models(fleet.catalogue.storage, fleet.budgets)
    assert table.clusters[table.kind].tolist() == [[3, 3, 2, 2, 2], [2] * 5, [2] * 5]
    assert mean_fewest_clusters(fleet, table) == pytest.approx(7 / 3)
    assert largest_group_count(fleet, table) == 2
    assert fleet.horizon == 30


def test_learning_rates() -> None:
    """√(ln K/(μ n T)), and √(2 ln K/(G n T)) with G = K·M/(K + M - 1) = 15/7 and 10/6."""
    fleet = unequal()
    assert rates(fleet, "tuned") == pytest.approx([math.sqrt(LN5 / 90), *[math.sqrt(LN5 / 60)] * 2])
    sharp = [math.sqrt(2 * LN5 * 7 / 15 / 30), *[math.sqrt(2 * LN5 * 6 / 10 / 30)] * 2]
    assert rates(fleet, "sharp") == pytest.approx(sharp)


def test_the_fine_tuning_rate() -> None:
    """1/√(α n T · 7/3) = 1/√140; by use without the clusters, 1/√60."""
    fleet = unequal()
    for weight, expected in (("inverse", 140), ("use", 60)):
        local = policy_of("ofms-ft", fleet, gradient_weight=weight).local
        assert local is not None
        assert local.rate == pytest.approx(expected**-0.5)


def test_client_bounds() -> None:
    """ln 5/0.1 + 0.1 · G · 30/2 for a frozen dictionary; else √(2 (M-1) n T ln 5) + (M-1) n ln 5/3 more."""
    fleet = unequal()
    frozen = policy_of("ofms-ft", fleet, learning_rate=0.1, fine_tuning_rate=0)
    sharp = [10 * LN5 + 1.5 * 15 / 7, *[10 * LN5 + 1.5 * 10 / 6] * 2]
    assert frozen.bound == pytest.approx(sharp)
    more = [math.sqrt(120 * LN5) + 2 * LN5, *[math.sqrt(60 * LN5) + LN5] * 2]
    assert policy_of("ofms-ft", fleet, learning_rate=0.1).bound == pytest.approx(np.array(sharp) + more)
    assert comparator_deviation(models=5, most_clusters=3, rounds=10, interval=3) == pytest.approx(more[0])
    often = [comparator_deviation(models=5, most_clusters=3, rounds=10, **each) for each in ({}, {"interval": 1})]
    assert often[0] == often[1], "an exchange in every round, if nothing is said"
    one = client_bound(models=5, learning_rate=0.1, fewest_clusters=4, most_clusters=3, rounds=10, interval=3)
    assert one.theorem == pytest.approx(10 * LN5 + 0.1 * 4 * 30)


def test_server_bounds() -> None:
    """3²/(2 · 0.1) = 45; 0.1 · α G² n T = 0.1 · 2 · 3² · 30 = 54, times the clusters."""
    common = {"distance": 3.0, "gradient": 3.0, "fine_tuning_rate": 0.1}
    bound = server_bound(**common, most_groups=2, fewest_clusters=7 / 3, most_clusters=4, rounds=10, interval=3)
    assert bound.theorem == pytest.approx(45 + 54 * 7 / 3)
    assert bound.sharp == pytest.approx(45 + 54 * 4 / 2)
    by_use = server_bound_by_use(**common, most_groups=2, rounds=10, interval=3)
    assert by_use.fixed == pytest.approx(45 + 27)
    assert by_use.realised == pytest.approx(72 + 3 * 3 * math.sqrt(60))


def test_the_rates_of_the_other_policies() -> None:
    """MAB √(2 ln 5/(5 n T)). Two bins of 7 or 9 bytes hold all 12: √(2 ln 5/(2 n T)), and ln 5/η + η · 2 · 30/2."""
    fleet = unequal()
    mab: Any = policy_of("mab", fleet).server
    assert mab.learning_rate == pytest.approx(math.sqrt(2 * LN5 / 150))
    experts = policy_of("budgeted-experts", fleet)
    clients, _ = open_sessions(experts, fleet)
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(3)).policy
    assert state.bins.tolist() == [2, 2, 2]
    rate = math.sqrt(2 * LN5 / 60)
    assert state.learning_rate == pytest.approx([rate] * 3)
    assert experts.bound == pytest.approx([LN5 / rate + rate * 30] * 3)


@pytest.mark.parametrize("feedback", ["one", "all"])
def test_exp3_is_tuned_to_the_size_of_each_subset(feedback: str) -> None:
    """√(2 ln s/(s n T)) with the loss of one of s models, √(8 ln s/(n T)) with those of all."""
    rule = Exp3(None, 0.0, "all" if feedback == "all" else "one", horizon=30)
    subset = np.array([[True, True, False, False], [True, True, True, False], [True, False, False, False]])
    losses = np.tile([0.0, 2.0, 2.0, 0.0], (3, 1))
    pmf = rule.probabilities(losses, subset)
    for client, size in ((0, 2), (1, 3)):
        rate = math.sqrt(8 * math.log(size) / 30 if feedback == "all" else 2 * math.log(size) / (size * 30))
        weight = math.exp(-2 * rate)
        assert pmf[client, 0] == pytest.approx(1 / (1 + (size - 1) * weight))
        assert pmf[client, 1] == pytest.approx(weight / (1 + (size - 1) * weight))
    assert pmf[2].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_b_fed_omft_weighs_the_updates_of_one_group_by_the_number_of_groups() -> None:
    fleet = fleet_of([2, 2, 2], [4] * 6, bandwidth=8)
    for weight, share in (("one", 1.0), ("use", 0.5)):
        policy = policy_of("b-fed-omft", fleet, gradient_weight=weight)
        clients, servers = open_sessions(policy, fleet)
        client, requests = clients.request(clients.join(fleet.catalogue, fleet.budgets, np.arange(6)), Draws(0, 0))
        _, grants = servers.grant(servers.open(), requests, Draws(0, 0))
        _, plan = clients.plan(client, grants)
        assert (grants.groups, int(grants.uploads.sum())) == (3, 2)
        assert plan.update_weight.tolist() == (3 * share * (grants.held & grants.uploads[:, None])).tolist()


@dataclass(frozen=True)
class _ServersNumber(Draws):
    """Draws whose single number is given."""

    number: float = 0.0

    def single(self, purpose: Purpose) -> float:
        assert purpose == Purpose.MODEL
        return self.number


def test_mabs_expected_weights_are_the_mean_over_all_of_its_draws() -> None:
    fleet = fleet_of([1, 1, 1], [2, 2])
    policy = policy_of("mab", fleet, learning_rate=1.0, exploration=0.3)
    clients, servers = open_sessions(policy, fleet)
    client, requests = clients.request(clients.join(fleet.catalogue, fleet.budgets, np.arange(2)), Draws(0, 0))
    server = servers.open()
    learnt = replace(server.policy, cumulative_losses=np.array([0.0, 1.0, 3.0]))
    server = replace(server, policy=learnt)
    numbers, total = 2000, np.zeros((2, 3))
    for number in range(numbers):
        granting, grants = servers.grant(server, requests, _ServersNumber(0, 0, (number + 0.5) / numbers))
        planning, plan = clients.plan(client, grants)
        total += plan.prediction_weights
        expected = expected_weights(policy, planning, granting)
    assert expected == pytest.approx(total / numbers, abs=1 / numbers)
    hedge = np.exp([0.0, -1.0, -3.0])
    assert expected[1].tolist() == pytest.approx((0.7 * hedge / hedge.sum() + 0.1).tolist())


@dataclass(frozen=True, eq=False)
class _EveryNumber(ClientDraws):
    """Clients with the same subset, each with another number to choose a model by."""

    def uniform(self, purpose: Purpose) -> Floats:
        assert purpose == Purpose.MODEL
        return (np.arange(self.clients.size) + 0.5) / self.clients.size

    def table(self, purpose: Purpose, columns: int) -> Floats:
        return np.tile([0.4, 0.1, 0.3, 0.2], (self.clients.size, 1))


def test_rms_fts_expected_weights_are_the_mean_over_all_choices_from_its_subset() -> None:
    fleet = fleet_of([2, 3, 2, 2], [7] * 60)
    policy = policy_of("rms-ft", fleet)
    state, wanted = policy.client.select(
        policy.client.start(fleet.catalogue, fleet.budgets), _EveryNumber(Draws(0, 0), np.arange(60))
    )
    assert wanted is not None
    assert wanted[0].tolist() == [False, True, True, True]
    expected = policy.expected_weights(state, None)
    chosen = np.bincount(state.chosen, minlength=4) / 60
    assert expected[7].tolist() == pytest.approx(chosen.tolist())
    assert chosen.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize(("rate", "near"), [("sharp", 1 / 2), ("tuned", 2 / 3), (0.005, None)])
def test_a_model_that_becomes_the_best_late_brings_regret_near_its_bound(
    rate: float | str, near: float | None, interval: int
) -> None:
    """Two models that are both held, so that regret is exact: one loses nothing for 1,000 rounds, then always.

    Exponential weights lose ln 2/η before they trust it; when the other one catches up, they have lost as much as both,
    and lose ln 2/η until they trust that one. So the regret is ln 2/η, of a bound of ln 2/η + η n T/2 (G = 1): half of
    it at the sharp rate √(2 ln 2/(n T)), two thirds at the paper's √(ln 2/(n T)), almost all at a small one.
    """
    rounds, changed = 3_000, 1_000
    fleet = fleet_of([1, 1], [2], rounds=rounds, interval=interval)
    policy = policy_of("ofms-ft", fleet, learning_rate=rate, fine_tuning_rate=0)
    clients, servers = open_sessions(policy, fleet)
    client, server = clients.join(fleet.catalogue, fleet.budgets, np.arange(1)), servers.open()
    incurred, alone = 0.0, np.zeros(2)
    for exchange in range(fleet.schedule.exchanges):
        client, requests = clients.request(client, Draws(0, exchange))
        server, grants = servers.grant(server, requests, Draws(0, exchange))
        client, plan = clients.plan(client, grants)
        first, stop = fleet.schedule.span(exchange)
        losses = sum(np.array([0.0, 1.0] if step < changed else [1.0, 0.0]) for step in range(first, stop))
        weights = expected_weights(policy, client, server)[0]
        incurred += float(weights @ losses)
        alone = alone + losses
        client, _ = clients.learn(client, plan, np.broadcast_to(losses, (1, 2)))
    assert alone.tolist() == [2000, 1000]
    assert policy.bound is not None
    if near is None:
        near = 1 / (1 + 0.005**2 * interval * rounds / (2 * math.log(2)))
        assert near > 0.85
    ratio = (incurred - alone.min()) / policy.bound[0]
    assert ratio == pytest.approx(near, rel=0.05)
    assert ratio <= 1
