"""The fused simulator against its oracle, the loopback: the same run, client by client through messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.protocol import Fleet
from ofms.simulator.exchange import Exchange
from ofms.simulator.fused import FusedSimulation, Parameters
from ofms.simulator.loopback import LoopbackSimulation
from tests.problems import image_problem, policy_of, regression_problem

PROBLEMS = {"regression": regression_problem, "images": image_problem}
SETTINGS: dict[str, dict[str, Any]] = {
    "ofms-ft": {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "window": 4, "warm_up": 2, "loss_bound": "raw"},
    "mab": {"learning_rate": 0.5},
    "fed-omd": {"model": 1, "local_rate": 0.05, "batch_size": 2, "epochs": 2, "window": 5, "warm_up": 3},
    "perfedavg": {"model": 1, "local_rate": 0.05, "adaptation_rate": 0.05, "batch_size": 3, "window": 5, "warm_up": 3},
}


def fleet_for(dictionary: Dictionary, stream: Stream, interval: int) -> Fleet:
    catalogue = dictionary.catalogue()
    largest = int(catalogue.storage.max())
    budgets = np.array([(2 + client % 3) * largest for client in range(stream.clients)], dtype=np.int64)
    return Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(stream.rounds, interval))


def both(
    problem: str, name: str, interval: int, dtype: torch.dtype, **settings: Any
) -> tuple[list[Exchange], Parameters, list[Exchange], Parameters]:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, interval)
    policy = policy_of(name, fleet, **SETTINGS[name] | settings)
    fused = FusedSimulation(policy, fleet, dictionary, stream, seed=5, dtype=dtype)
    loopback = LoopbackSimulation(policy, fleet, dictionary, stream, seed=5, dtype=dtype)
    return list(fused.exchanges()), fused.parameters(), list(loopback.exchanges()), loopback.parameters()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_simulator_and_loopback_agree(problem: str, name: str, interval: int, dtype: torch.dtype) -> None:
    fused, parameters, loopback, expected = both(problem, name, interval, dtype)
    assert len(fused) == len(loopback)
    pulls = np.zeros(fused[0].plan.pull.shape[1])
    for one, other in zip(fused, loopback, strict=True):
        assert one.plan.vote.tolist() == other.plan.vote.tolist(), "choices"
        assert one.plan.held.tolist() == other.plan.held.tolist(), "held sets"
        assert one.grants.uploads.tolist() == other.grants.uploads.tolist(), "groups"
        assert one.grants.groups == other.grants.groups
        for direction in ("down", "up", "held"):
            assert getattr(one.traffic, direction).tolist() == getattr(other.traffic, direction).tolist(), "bytes"
        tolerance = 1e-4 if dtype is torch.float32 else 1e-10
        assert one.losses == pytest.approx(other.losses, rel=tolerance, abs=tolerance)
        assert one.played == pytest.approx(other.played, rel=tolerance, abs=tolerance)
        assert one.scores == pytest.approx(other.scores, rel=tolerance, abs=tolerance)
        assert one.expected_vote == pytest.approx(other.expected_vote, rel=tolerance, abs=tolerance)
        pulls += one.plan.pull.sum(axis=0)
    dictionary = PROBLEMS[problem]()[0]
    if name != "mab":
        moved = max(
            float((after[key] - model.tensors[key].to(dtype)).abs().max())
            for model, after in zip(dictionary.models, parameters, strict=True)
            for key in after
        )
        assert moved > 1e-3, "fine-tuning did something"
    for model, (mine, theirs) in enumerate(zip(parameters, expected, strict=True)):
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            # ‖g‖∞ of these problems is about one; Σ_i w_i is what the weights of all updates add up to.
            limit = (1e-5 if dtype is torch.float32 else 1e-10) * max(1.0, pulls[model])
            assert float((tensor - theirs[key]).abs().max()) <= limit, (model, key)


def test_one_fused_step_is_the_sum_of_the_clients_own_gradients() -> None:
    """‖a - b‖∞ ≤ ε · Σ_i w_i ‖g_i‖∞ for every parameter after one exchange, with the gradients themselves."""
    for problem, make in PROBLEMS.items():
        for dtype, epsilon in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
            dictionary, stream = make()
            fleet = fleet_for(dictionary, stream, 1)
            policy = policy_of("ofms-ft", fleet, fine_tuning_rate=1.0, learning_rate=0.1)
            fused = FusedSimulation(policy, fleet, dictionary, stream, seed=1, dtype=dtype)
            loopback = LoopbackSimulation(policy, fleet, dictionary, stream, seed=1, dtype=dtype)
            plan = next(iter(fused.exchanges())).plan
            clients = loopback.clients
            sums: dict[int, dict[str, torch.Tensor]] = {}
            sizes: dict[int, dict[str, float]] = {}
            for client in range(stream.clients):
                for model in np.flatnonzero(plan.pull[client]).tolist():
                    module = dictionary.models[model].module.to(dtype)
                    weights = {key: value.to(dtype) for key, value in dictionary.models[model].tensors.items()}
                    leaves = {key: weights[key].clone().requires_grad_() for key in dictionary.models[model].trainable}
                    output = torch.func.functional_call(module, weights | leaves, (clients[client].x[:1],))
                    target = clients[client].y[:1]
                    loss = (
                        torch.nn.functional.cross_entropy(output, target)
                        if stream.task == "classification"
                        else (output[0, 0] - target[0]) ** 2
                    )
                    slopes = torch.autograd.grad(loss, list(leaves.values()))
                    for key, slope in zip(leaves, slopes, strict=True):
                        pull = float(plan.pull[client, model])
                        total = sums.setdefault(model, {})
                        total[key] = total.get(key, torch.zeros_like(slope)) + pull * slope
                        size = sizes.setdefault(model, {})
                        size[key] = size.get(key, 0.0) + pull * float(slope.abs().max())
            after = fused.parameters()
            assert sums, problem
            for model, totals in sums.items():
                for key, total in totals.items():
                    expected = dictionary.models[model].tensors[key].to(dtype) - total / stream.clients
                    difference = float((after[model][key] - expected).abs().max())
                    rounding = torch.finfo(dtype).eps * float(expected.abs().max())
                    assert difference <= epsilon * sizes[model][key] + rounding


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_number_of_workers_changes_no_bit(problem: str, name: str) -> None:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, 2)
    policy = policy_of(name, fleet, **SETTINGS[name])
    results = []
    for workers in (1, 2, 5, 2):
        simulation = FusedSimulation(policy, fleet, dictionary, stream, seed=9, workers=workers)
        exchanges = list(simulation.exchanges())
        results.append((exchanges, simulation.parameters()))
    first, parameters = results[0]
    for exchanges, others in results[1:]:
        for one, other in zip(first, exchanges, strict=True):
            assert one.losses.tobytes() == other.losses.tobytes()
            assert one.scores.tobytes() == other.scores.tobytes()
        for mine, theirs in zip(parameters, others, strict=True):
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_hindsight_changes_nothing_but_what_is_measured(problem: str, name: str) -> None:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of(name, fleet, **SETTINGS[name])
    runs = []
    for hindsight in (True, False):
        simulation = FusedSimulation(policy, fleet, dictionary, stream, seed=9, hindsight=hindsight)
        runs.append((list(simulation.exchanges()), simulation.parameters()))
    (seen, parameters), (unseen, others) = runs
    for one, other in zip(seen, unseen, strict=True):
        assert np.isfinite(one.losses).all()
        assert (np.isfinite(other.losses) == other.plan.held[:, None]).all()
        assert one.scores.tobytes() == other.scores.tobytes()
        assert one.plan.held.tolist() == other.plan.held.tolist()
    for mine, theirs in zip(parameters, others, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_statistics_of_batch_norm_stay_as_they_are() -> None:
    dictionary = image_problem()[0]
    _, parameters, _, _ = both("images", "ofms-ft", 1, torch.float32)
    for model, after in zip(dictionary.models, parameters, strict=True):
        for key, tensor in after.items():
            if "running" in key:
                assert torch.equal(tensor, model.tensors[key])


def test_only_trainable_parameters_move() -> None:
    whole, stream = regression_problem()
    modules = {model.name: model.module for model in whole.models}
    dictionary = Dictionary.from_modules(modules, task="regression", trainable=["0.*"])
    assert (dictionary.catalogue().upload < dictionary.catalogue().storage).all()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of("ofms-ft", fleet, fine_tuning_rate=0.1)
    fused = FusedSimulation(policy, fleet, dictionary, stream, seed=0)
    loopback = LoopbackSimulation(policy, fleet, dictionary, stream, seed=0)
    list(fused.exchanges()), list(loopback.exchanges())
    for model, mine, theirs in zip(dictionary.models, fused.parameters(), loopback.parameters(), strict=True):
        for key, tensor in mine.items():
            assert tensor == pytest.approx(theirs[key], abs=1e-4)
            assert torch.equal(tensor, model.tensors[key]) != key.startswith("0.")
