"""Models that go back to earlier versions by an event: the same in both simulators and on devices, and useful again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ofms
from ofms.core.attacks import Attack
from ofms.core.events import Event
from ofms.simulator.phases import Phases
from ofms.simulator.simulation import Simulation, make_simulation
from tests.changing import changing_setup
from tests.problems import PROBLEMS

NAMES = ["late-hedge", "ofms-ft", "rms-ft", "b-fed-omft", "fed-omd"]
EVENTS = (Event(exchange=9, rollback={"net1": 0, "net2": 6}), Event(exchange=12, rollback={"net2": 0}))


def simulation(name: str, events: tuple[Event, ...] = EVENTS, attack: str | None = None, **given: Any) -> Simulation:
    dictionary, stream = PROBLEMS["regression"]()
    phases = Phases.of(changing_setup("regression", name, events, 1), events)
    first = phases.first
    options: Any = {"seed": 5, "dtype": torch.float64, "phases": phases} | given
    hostile = None if attack is None else Attack.of(attack)
    return make_simulation(first.built, first.fleet, dictionary, stream, attack=hostile, **options)


@pytest.mark.parametrize("name", [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:])])
def test_simulator_and_loopback_agree(name: str) -> None:
    fused, loopback = simulation(name), simulation(name, loopback=True)
    before: dict[int, Any] = {}
    for one, other in zip(fused.exchanges(), loopback.exchanges(), strict=True):
        assert one.plan.held.tolist() == other.plan.held.tolist(), one.index
        assert one.plan.prediction_weights == pytest.approx(other.plan.prediction_weights, abs=1e-6), one.index
        assert one.grants.version.tolist() == other.grants.version.tolist(), one.index
        before[one.index] = one.grants.version
    assert before[10][1] > before[8][1], "a new version, so that clients get it"
    for mine, theirs in zip(fused.parameters(), loopback.parameters(), strict=True):
        for key, tensor in mine.items():
            assert tensor == pytest.approx(theirs[key], rel=1e-6, abs=1e-8)


def test_models_have_the_parameters_that_they_had_then() -> None:
    """Without fine-tuning from exchange 9 on, the last parameters are those of the event."""
    event = Event(exchange=9, rollback={"net1": 0, "net2": 6}, settings={"fine_tuning_rate": 0})
    made = simulation("ofms-ft", (event,))
    then: list[Any] = []
    for exchange in made.exchanges():
        if exchange.index == 5:
            then = made.parameters()
    first, last = PROBLEMS["regression"]()[0].models, made.parameters()
    for key in last[1]:
        assert torch.equal(last[1][key], first[1].tensors[key].double())
        assert torch.equal(last[2][key], then[2][key])
    assert any(not torch.equal(last[2][key], first[2].tensors[key].double()) for key in last[2])


@pytest.mark.parametrize("loopback", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_with_a_rollback_resumes_with_the_same_bits(loopback: bool) -> None:
    whole = simulation("late-hedge", loopback=loopback)
    list(whole.exchanges())
    for stop in (5, 7, 9):
        part = simulation("late-hedge", loopback=loopback)
        for exchange in part.exchanges():
            if exchange.index == stop:
                break
        again = simulation("late-hedge", loopback=loopback)
        again.unflatten(*part.flatten())
        list(again.exchanges())
        for mine, theirs in zip(whole.parameters(), again.parameters(), strict=True):
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_clients_forget_what_they_learnt_about_a_model_that_goes_back() -> None:
    """As a new expert, it has a share of one over the number of models."""
    found = []
    for event in (Event(exchange=12, rollback={"net1": 0}), Event(exchange=12, bandwidth="99%")):
        found.append([each.expected_weights for each in simulation("ofms-ft", (event,)).exchanges()])
    back, kept = found
    assert back[11] == pytest.approx(kept[11])
    assert back[12][:, 1] == pytest.approx(1 / 6)
    assert np.abs(kept[12][:, 1] - 1 / 6).max() > 0.02
    others = [0, 2, 3, 4, 5]
    shares = [each[12][:, others] / each[12][:, others].sum(axis=1, keepdims=True) for each in found]
    assert shares[0] == pytest.approx(shares[1]), "of the others nothing is forgotten"


def test_a_rollback_restores_what_an_attack_destroyed() -> None:
    """Hostile clients destroy all models, then leave; models go back, and predict as before the attack."""
    names = [model.name for model in PROBLEMS["regression"]()[0].models]
    attack = Attack.of("largest:0.3")
    hostile = tuple(np.flatnonzero(attack.hostile(5, 6)).tolist())
    errors = {}
    for rollback in ({}, dict.fromkeys(names, 0)):
        events = (Event(exchange=10, leave=hostile, rollback=rollback),)
        found = list(simulation("ofms-ft", events, "largest:0.3", dtype=torch.float32).exchanges())
        honest = [client for client in range(6) if client not in hostile]
        errors[bool(rollback)] = [float(each.scores[honest].mean()) for each in found]
    first = np.mean(errors[True][:3])
    assert np.mean(errors[False][8:10]) > 100 * first, "destroyed"
    assert np.mean(errors[False][12:]) > 100 * first, "and destroyed it stays"
    assert np.mean(errors[True][10:]) < 3 * first


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"rollback": {"netX": 0}}, "rollback = netX: no such model is in use; name one of net0"),
        ({"rollback": {"net1": 10}}, "rollback = net1 to 10: give an exchange from 0 to 9"),
        ({"rollback": {"net1": -1}}, "rollback = net1 to -1: give an exchange from 0 to 9"),
        ({"rollback": {"net1": 0}, "retire": ("net1",)}, "rollback = net1: no such model is in use"),
    ],
)
def test_an_impossible_rollback_is_one_line(event: dict[str, Any], message: str) -> None:
    with pytest.raises(ofms.InvalidInput) as caught:
        simulation("ofms-ft", (Event(exchange=9, **event),))
    assert message in str(caught.value)


def test_an_experiments_table_rolls_back() -> None:
    dictionary, stream = PROBLEMS["regression"]()
    given: Any = {"models": dictionary, "stream": stream, "policy": "ofms-ft", "preset": "theory", "budget": "2"}
    events = [{"exchange": 15, "rollback": {"net1": 0, "net3": 7}}]
    result = ofms.simulate(**given, bandwidth="100%", fine_tuning_rate=0.05, events=events)
    assert result.config.events is not None
    assert result.config.events[0].rollback == {"net1": 0, "net3": 7}
    plain = ofms.simulate(**given, bandwidth="100%", fine_tuning_rate=0.05)
    assert result.score.tolist() != plain.score.tolist()
