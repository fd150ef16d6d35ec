"""Robust aggregation and hostile clients: the fused simulator against the loopback, and models that stay useful."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ofms.compute import by_client, updates
from ofms.compute.protocol import Tensors
from ofms.core.attacks import Attack
from ofms.core.robust import Aggregation, clip_factors
from ofms.models.dictionary import Dictionary
from ofms.simulator.exchange import Exchange
from ofms.simulator.phases import Phases
from ofms.simulator.simulation import make_simulation
from tests.changing import EVENTS, changing_setup
from tests.policy_settings import SETTINGS
from tests.problems import PROBLEMS, fleet_for, policy_of, regression_problem

# One of each kind of local training, and late hedging, which fine-tunes for the pool and learns from losses.
POLICIES = ["late-hedge", "ofms-ft", "fed-poe", "fed-omd", "perfedavg"]

KINDS = ["median", "trimmed-mean", "clipped"]


def run(
    problem: str, name: str, aggregation: str, attack: str | None = None, *, loopback: bool
) -> tuple[list[Exchange], list[Tensors]]:
    dictionary, stream = PROBLEMS[problem]()
    fleet = replace(fleet_for(dictionary, stream, 1), bandwidth=10**9)
    policy = replace(policy_of(name, fleet, **SETTINGS[name]), aggregation=Aggregation.of(aggregation))
    given: Any = {"seed": 5, "dtype": torch.float64, "loopback": loopback}
    hostile = None if attack is None else Attack.of(attack)
    simulation = make_simulation(policy, fleet, dictionary, stream, attack=hostile, **given)
    return list(simulation.exchanges()), simulation.parameters()


def assert_same(one: list[Tensors], other: list[Tensors]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        for key, tensor in mine.items():
            assert tensor == pytest.approx(theirs[key], rel=1e-6, abs=1e-8), key


CASES = [(problem, name, each) for problem in PROBLEMS for name in POLICIES for each in KINDS]
# One of each, by default.
FEW = [("regression", name, KINDS[place % 3]) for place, name in enumerate(POLICIES)] + [
    ("images", "late-hedge", "median")
]


@pytest.mark.parametrize(
    ("problem", "name", "aggregation"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in FEW)],
)
@pytest.mark.parametrize("pieces", ["whole", pytest.param("small, on disk", marks=pytest.mark.slow)])
def test_simulator_and_loopback_agree(
    problem: str, name: str, aggregation: str, pieces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces != "whole":
        monkeypatch.setattr(updates, "_VALUES_AT_ONCE", 100)
        monkeypatch.setattr(by_client, "_VALUES_IN_MEMORY", 100)
    fused, parameters = run(problem, name, aggregation, loopback=False)
    loopback, expected = run(problem, name, aggregation, loopback=True)
    for one, other in zip(fused, loopback, strict=True):
        assert one.plan.held.tolist() == other.plan.held.tolist()
        assert one.grants.version.tolist() == other.grants.version.tolist()
    assert_same(parameters, expected)
    _, summed = run(problem, name, "sum", loopback=False)
    assert any(
        not torch.equal(mine[key], theirs[key]) for mine, theirs in zip(parameters, summed, strict=True) for key in mine
    )


def test_many_updates_lie_on_disk_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = run("regression", "ofms-ft", "median", loopback=False)
    monkeypatch.setattr(updates, "_VALUES_AT_ONCE", 100)
    monkeypatch.setattr(by_client, "_VALUES_IN_MEMORY", 100)
    _, pieces = run("regression", "ofms-ft", "median", loopback=False)
    assert_same(pieces, whole)


@pytest.mark.parametrize(
    ("attack", "aggregation"), [("sign-flip:0.3", "sum"), ("random:0.3", "clipped"), ("largest:0.3", "trimmed-mean")]
)
def test_simulator_and_loopback_agree_under_attack(attack: str, aggregation: str) -> None:
    fused, parameters = run("regression", "ofms-ft", aggregation, attack, loopback=False)
    loopback, expected = run("regression", "ofms-ft", aggregation, attack, loopback=True)
    for one, other in zip(fused, loopback, strict=True):
        assert one.plan.held.tolist() == other.plan.held.tolist()
    scale = max(float(tensor.abs().max()) for each in expected for tensor in each.values())
    for mine, theirs in zip(parameters, expected, strict=True):
        for key, tensor in mine.items():
            assert float((tensor - theirs[key]).abs().max()) <= 1e-6 * scale


def test_the_sum_of_separate_updates_is_that_of_one_backward_pass() -> None:
    """An attack by nobody forms each client's update; the models move as they do without."""
    _, separate = run("regression", "late-hedge", "sum", "random:0.01", loopback=False)
    _, together = run("regression", "late-hedge", "sum", loopback=False)
    assert_same(separate, together)


@pytest.mark.parametrize("name", ["late-hedge", "ofms-ft"])
def test_simulator_and_loopback_agree_on_a_fleet_that_changes(name: str) -> None:
    """Clients that joined fine-tune on fewer samples: their updates are combined with those of the others."""
    first, *later = EVENTS
    events = (replace(first, aggregation="median"), *later[:1], replace(later[1], aggregation="clipped:2"), *later[2:])
    found = []
    for loopback in (False, True):
        dictionary, stream = PROBLEMS["regression"]()
        setup = changing_setup("regression", name, events, 1)
        phases = Phases.of(setup, events)
        policy, fleet = phases.first.built, phases.first.fleet
        given: Any = {"seed": 5, "dtype": torch.float64, "phases": phases, "loopback": loopback}
        simulation = make_simulation(policy, fleet, dictionary, stream, **given)
        found.append(([each.plan.held.tolist() for each in simulation.exchanges()], simulation.parameters()))
        assert simulation.policy.aggregation == Aggregation("clipped", 2.0)  # type: ignore[attr-defined]
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])


@pytest.mark.parametrize("aggregation", ["clipped", "trimmed-mean", "median"])
def test_a_robust_aggregation_keeps_models_that_an_attack_destroys(aggregation: str) -> None:
    """All clients upload all models: 3 of 10 at the largest norm are a minority of every model's updates."""
    whole, stream = regression_problem(10, 20)
    dictionary = Dictionary("regression", whole.models[:3])
    fleet = fleet_for(dictionary, stream, 1)
    budgets = np.full(10, int(fleet.catalogue.storage.sum()))
    fleet = replace(fleet, budgets=budgets, bandwidth=int(budgets.sum()))
    scores = {}
    for each, attack in (("sum", None), ("sum", "largest:0.3"), (aggregation, "largest:0.3")):
        policy = replace(policy_of("rms-ft", fleet, fine_tuning_rate=0.01), aggregation=Aggregation.of(each))
        hostile = None if attack is None else Attack.of(attack)
        simulation = make_simulation(policy, fleet, dictionary, stream, seed=1, attack=hostile)
        scores[each, attack] = float(np.mean([exchange.scores for exchange in simulation.exchanges()]))
    honest = scores["sum", None]
    assert scores["sum", "largest:0.3"] > 100 * honest, "squared errors of models that were destroyed"
    assert scores[aggregation, "largest:0.3"] < 2 * honest


@pytest.mark.parametrize("loopback", [False, True])
def test_updates_that_are_not_finite_are_left_out_of_a_robust_total(loopback: bool) -> None:
    """One client's samples are beyond the range of numbers: the others' updates count."""
    dictionary, stream = regression_problem()
    x = stream.x.copy()
    x[2] = 3e38
    fleet = replace(fleet_for(dictionary, stream, 1), bandwidth=10**9)
    policy = replace(policy_of("ofms-ft", fleet, **SETTINGS["ofms-ft"]), aggregation=Aggregation.of("median"))
    broken = replace(stream, x=x)
    simulation = make_simulation(policy, fleet, dictionary, broken, seed=5, loopback=loopback)
    exchanges = list(simulation.exchanges())
    assert {client for each in exchanges for client, _ in each.left_out} == {2}
    assert all(torch.isfinite(tensor).all() for each in simulation.parameters() for tensor in each.values())
    assert any(each.grants.version.any() for each in exchanges)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_of_norm_0_is_not_shortened_and_warns_of_nothing(kind: str) -> None:
    assert clip_factors(np.array([0.0, 1.0]), Aggregation.of(kind), 1e9).tolist() == [1, 1]
