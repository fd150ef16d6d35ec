"""A model that diverges is quarantined, and the run goes on: alike in both simulators, on devices and their server."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ofms
from ofms.coordinator.coordinator import Coordinator
from ofms.core.schedule import Schedule
from ofms.models.dictionary import Dictionary
from ofms.policies.fleet import Fleet
from ofms.report.page import render
from ofms.runs.interrupt import RunInterrupted
from ofms.simulator.exchange import Exchange
from ofms.simulator.simulation import make_simulation
from ofms.storage.envelope import decode
from tests.devices import ROUNDS, budgets_for, open_devices, problem
from tests.policy_settings import SETTINGS
from tests.problems import policy_of, regression_problem
from tests.stopping import stop_after

WILD, INTERVAL, SEED = 2, 2, 5
# The last two parts are what happens: whether the model is fine-tuned before it diverges.
CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "after a step": ("ofms-ft", 1e4, {"fine_tuning_rate": 0.5}),
    "in its first version": ("ofms-ft", 1e12, {"fine_tuning_rate": 0.5}),
    "raw losses": ("ofms-ft", 1e4, {"fine_tuning_rate": 0.5, "loss_bound": "raw"}),
    "RMS-FT": ("rms-ft", 1e4, {}),
    "late hedging": ("late-hedge", 1e14, {"fine_tuned": "used"}),
    "the global model": ("late-hedge", 1e14, {"model": WILD}),
}


def with_a_wild_model(dictionary: Dictionary, scale: float) -> Dictionary:
    """One model's weights are so large that fine-tuning it overflows."""
    models = list(dictionary.models)
    tensors = {name: scale * tensor for name, tensor in models[WILD].tensors.items()}
    models[WILD] = replace(models[WILD], tensors=tensors)
    return replace(dictionary, models=tuple(models))


def setting(case: str) -> tuple[Dictionary, ofms.Stream, Fleet, str, dict[str, Any]]:
    name, scale, changes = CASES[case]
    dictionary, stream = problem()
    dictionary, budgets = with_a_wild_model(dictionary, scale), budgets_for(dictionary)
    fleet = Fleet(dictionary.catalogue(), budgets, 2 * int(budgets.sum()), Schedule(ROUNDS, INTERVAL))
    return dictionary, stream, fleet, name, SETTINGS[name] | changes


def deployed(case: str, folder: Path) -> tuple[list[list[list[int]]], list[list[int]], Coordinator]:
    """By exchange: what each device holds, and the quarantined models; then the coordinator."""
    dictionary, stream, fleet, name, settings = setting(case)
    coordinator = Coordinator(
        dictionary,
        budgets=fleet.budgets,
        bandwidth=fleet.bandwidth,
        rounds=ROUNDS,
        interval=INTERVAL,
        policy=name,
        settings=settings,
        seed=SEED,
        largest_update=1e300,
    )
    devices, held, quarantined = open_devices(folder, dictionary), [], []
    for client, device in enumerate(devices):
        device.receive(coordinator.welcome(client))
    for exchange in range(ROUNDS // INTERVAL):
        for client, grant in coordinator.run_exchange(
            {k: each.collect() or b"" for k, each in enumerate(devices)}
        ).items():
            devices[client].receive(grant)
        held.append([device.holding for device in devices])
        for client, device in enumerate(devices):
            for step in range(exchange * INTERVAL, (exchange + 1) * INTERVAL):
                value = device.predict(stream.x[client, step])
                assert np.isfinite(value.value)
                assert device.feedback(value.id, float(stream.y[client, step]))
        quarantined.append(coordinator.quarantined)
    for client, device in enumerate(devices):
        assert coordinator.receive(client, decode(device.collect() or b"")) == []
        device.close()
    coordinator.close()
    return held, [*quarantined[1:], coordinator.quarantined], coordinator


def held_of(exchange: Exchange) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in exchange.plan.held]


@pytest.mark.parametrize("case", CASES)
def test_a_diverged_model_is_quarantined_alike_everywhere(case: str, tmp_path: Path) -> None:
    dictionary, stream, fleet, name, settings = setting(case)
    policy = policy_of(name, fleet, **settings)
    runs: dict[str, list[Exchange]] = {}
    parameters = {}
    for kind in ("fused", "loopback"):
        simulation = make_simulation(policy, fleet, dictionary, stream, seed=SEED, loopback=kind == "loopback")
        runs[kind], parameters[kind] = list(simulation.exchanges()), simulation.parameters()
    held, quarantined, coordinator = deployed(case, tmp_path)
    found: set[int] = set()
    for number, (one, other) in enumerate(zip(runs["fused"], runs["loopback"], strict=True)):
        found |= set(one.quarantined)
        assert one.quarantined == other.quarantined
        assert one.left_out == other.left_out
        assert sorted(found) == quarantined[number]
        assert held_of(one) == held_of(other) == held[number]
        assert one.plan.prediction_weights == pytest.approx(other.plan.prediction_weights, abs=1e-5)
        assert one.scores == pytest.approx(other.scores, rel=1e-3, abs=1e-5)
        for each in (one, other):
            assert np.isfinite(each.scores).all()
            assert np.isfinite(each.client_losses[each.plan.held[:, None].repeat(INTERVAL, axis=1)]).all()
    assert found == {WILD}, "it diverged, and no other model"
    # Its first version is the last one that is known to be finite.
    first = dictionary.models[WILD].tensors
    for tensors in (parameters["fused"][WILD], parameters["loopback"][WILD], coordinator.tensors[WILD]):
        assert all(torch.equal(tensors[key], first[key]) for key in tensors)
    for model in set(range(len(dictionary))) - {WILD}:
        for key, tensor in parameters["fused"][model].items():
            assert tensor == pytest.approx(parameters["loopback"][model][key], rel=1e-3, abs=1e-4)
            assert tensor == pytest.approx(coordinator.tensors[model][key], rel=1e-3, abs=1e-4)
    quarantine = next(number for number, models in enumerate(quarantined) if models)
    later = [each.plan.update_weight[:, WILD] for each in runs["fused"][quarantine + 1 :]]
    assert not np.any(later), "no client fine-tunes it any more"


def wild_options(**given: Any) -> dict[str, Any]:
    dictionary, stream = regression_problem(rounds=16)
    options = {"policy": "ofms-ft", "budget": "3", "bandwidth": "100%", "interval": 2, "seed": 7}
    settings = {"fine_tuning_rate": 0.05, "warm_up": 2, "learning_rate": 0.5, "loss_bound": "clip"}
    named = replace(stream, names=tuple(f"pump {letter}" for letter in "abcdef"))
    return {"models": with_a_wild_model(dictionary, 1e4), "stream": named} | options | settings | given


@pytest.mark.parametrize("loopback", [False, True], ids=["fused", "loopback"])
def test_a_quarantine_survives_resuming_with_the_same_bits(loopback: bool, tmp_path: Path) -> None:
    options = wild_options(loopback=loopback)
    whole = ofms.simulate(out=tmp_path / "whole", **options)
    [event] = whole.figures["quarantined"]
    assert event["model"] == "net2"
    assert event["round"] < 12, "before the run is stopped"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(RunInterrupted, match="stopped after round 12 of 16"):
            ofms.simulate(out=tmp_path / "parts", **options)
    ofms.simulate(resume=tmp_path / "parts", models=options["models"], stream=options["stream"])
    for name in ("metrics.jsonl", "history.npz"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    again = ofms.load(tmp_path / "parts")
    assert again.figures["quarantined"] == [event]
    assert again.figures["warnings"] == whole.figures["warnings"]


@pytest.mark.parametrize("progress", [True, False])
def test_the_event_is_in_the_log_the_summary_and_the_page(
    progress: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="ofms"):
        result = ofms.simulate(out=tmp_path / "run", progress=progress, **wild_options())
    [event] = result.figures["quarantined"]
    line = f"quarantined because their updates were not finite: net2 (since round {event['round']})"
    logged = [(each.levelname, each.name) for each in caplog.records if line in each.getMessage()]
    assert logged == [("WARNING" if progress else "INFO", "ofms.simulator.progress")]
    rounds = [json.loads(each) for each in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [each["round"] for each in rounds if each.get("quarantined") == ["net2"]] == [event["round"]]
    assert any("pump" in name for each in rounds for name in each.get("left_out", ()))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["quarantined"] == [event]
    assert line in str(result)
    assert line in render([result])
    assert np.isfinite(result.score).all()


@pytest.mark.parametrize("name", ["ofms-ft", "fed-omd"])
@pytest.mark.parametrize("loopback", [False, True], ids=["fused", "loopback"])
def test_an_outlier_of_one_client_does_not_stop_the_others(name: str, loopback: bool) -> None:
    """Its updates are left out; the sum is that of the other clients."""
    dictionary, stream = regression_problem(clients=4, rounds=8)
    x = stream.x.copy()
    x[1, 4] = 1e30
    changes = {"loss_bound": "clip"} if name == "ofms-ft" else {}
    budgets = np.full(4, 6 * int(dictionary.catalogue().storage.max()))
    fleet = Fleet(dictionary.catalogue(), budgets, 2 * int(budgets.sum()), Schedule(8, 4))
    policy = policy_of(name, fleet, **SETTINGS[name] | changes | {"window": 4, "warm_up": 0})
    simulation = make_simulation(
        policy, fleet, dictionary, replace(stream, x=x), seed=SEED, loopback=loopback, hindsight=False
    )
    exchanges = list(simulation.exchanges())
    assert not any(each.quarantined for each in exchanges)
    assert exchanges[0].left_out == []
    assert {client for client, _ in exchanges[1].left_out} == {1}
    left_out = {model for _, model in exchanges[1].left_out}
    for number, (tensors, model) in enumerate(zip(simulation.parameters(), dictionary.models, strict=True)):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
        moved = any(not torch.equal(tensor, model.tensors[key]) for key, tensor in tensors.items())
        assert moved or number not in left_out
