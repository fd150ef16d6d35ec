"""The fused simulator against the loopback, which runs client by client through messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ofms.compute import samples, updates
from ofms.compute.protocol import Tensors
from ofms.core.packing import partition_models
from ofms.core.selection import inclusion_probabilities
from ofms.core.selection_loss import selection_loss
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.local_updates import GradientStep
from ofms.simulator.exchange import Exchange
from ofms.simulator.loopback import LoopbackSimulation
from ofms.simulator.simulation import make_simulation
from tests.policy_settings import SETTINGS
from tests.problems import PROBLEMS, fleet_for, image_problem, policy_of, regression_problem

# Late hedging whose models are fine-tuned by use, for what they are not fine-tuned for by default.
BY_USE = {"fine_tuned": "used"}
OTHER_OBJECTIVE = {"regression": "auto", "images": "pool"}


def both(
    problem: str, name: str, interval: int, dtype: torch.dtype, **settings: Any
) -> tuple[list[Exchange], list[Tensors], list[Exchange], list[Tensors]]:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, interval)
    policy = policy_of(name, fleet, **SETTINGS[name] | settings)
    fused = make_simulation(policy, fleet, dictionary, stream, seed=5, dtype=dtype)
    loopback = LoopbackSimulation(policy, fleet, dictionary, stream, seed=5, dtype=dtype)
    return list(fused.exchanges()), fused.parameters(), list(loopback.exchanges()), loopback.parameters()


@pytest.fixture(params=["as it is", "in small pieces"])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems are one piece of work; with smaller pieces they take several, as large problems do."""
    if request.param == "in small pieces":
        for module, name, size in (
            *((samples, "_IMAGES", 7), (samples, "_VECTORS", 5)),
            *((updates, "_MODELS", 2), (updates, "_VALUES", 300)),
        ):
            monkeypatch.setattr(module, f"{name}_AT_ONCE", size)


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((name, dtype) for name in SETTINGS for dtype in (torch.float32, torch.float64)),
        *(("late-hedge, by use", dtype) for dtype in (torch.float32, torch.float64)),
        ("late-hedge, by use, other objective", torch.float64),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_simulator_and_loopback_agree(problem: str, case: str, interval: int, dtype: torch.dtype) -> None:
    name, *parts = case.split(", ")
    changes: dict[str, Any] = BY_USE if parts else {}
    changes = changes | ({"objective": OTHER_OBJECTIVE[problem]} if len(parts) > 1 else {})
    fused, parameters, loopback, expected = both(problem, name, interval, dtype, **changes)
    assert len(fused) == len(loopback)
    local = policy_of(name, fleet_for(*PROBLEMS[problem](), interval), **SETTINGS[name] | changes).local
    scale = np.zeros(fused[0].plan.update_weight.shape[1])
    tolerance = 1e-4 if dtype is torch.float32 else 1e-10
    # Late hedging keeps weights and outputs as float32, and its rates magnify rounding where losses hardly differ.
    of_weights = max(20 * tolerance, 1e-6) if name == "late-hedge" else tolerance
    for one, other in zip(fused, loopback, strict=True):
        assert one.plan.prediction_weights == pytest.approx(other.plan.prediction_weights, abs=of_weights), "choices"
        assert one.plan.held.tolist() == other.plan.held.tolist(), "held sets"
        assert one.grants.uploads.tolist() == other.grants.uploads.tolist(), "groups"
        assert one.grants.groups == other.grants.groups
        for direction in ("down", "up", "held"):
            assert getattr(one.traffic, direction).tolist() == getattr(other.traffic, direction).tolist(), "bytes"
        assert one.losses == pytest.approx(other.losses, rel=tolerance, abs=tolerance)
        assert one.client_losses == pytest.approx(other.client_losses, rel=tolerance, abs=tolerance)
        assert one.scores == pytest.approx(other.scores, rel=of_weights, abs=of_weights)
        assert (one.frozen_scores is None) == (other.frozen_scores is None) == (local is None)
        if one.frozen_scores is not None and other.frozen_scores is not None:
            assert one.frozen_scores == pytest.approx(other.frozen_scores, rel=of_weights, abs=of_weights)
        assert one.expected_weights == pytest.approx(other.expected_weights, rel=of_weights, abs=of_weights)
        # The most that an update adds to a parameter: rate · 1/N · Σ_i w_i‖g_i‖∞, where ‖g‖∞ is about ten in these
        # problems, times the number of steps of local training.
        steps = 1 if local is None or isinstance(local, GradientStep) else local.epochs * local.window
        scale += 10 * steps * (local.rate if local else 0) * one.plan.update_weight.mean(axis=0)
    dictionary = PROBLEMS[problem]()[0]
    if local is not None:
        moved = [
            max(float((after[key] - model.tensors[key].to(dtype)).abs().max()) for key in after)
            for model, after in zip(dictionary.models, parameters, strict=True)
        ]
        assert max(moved) > 3e-4, "fine-tuning changed parameters"
        if name == "late-hedge":
            # Its steps do not depend on the rate; updates differ as much as the weights do.
            scale = (1000 if dtype is torch.float32 else 10_000) * np.array(moved)
    for model, (mine, theirs) in enumerate(zip(parameters, expected, strict=True)):
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            epsilon = 1e-5 if dtype is torch.float32 else 1e-10
            rounding = len(fused) * torch.finfo(dtype).eps * float(theirs[key].abs().max())
            assert float((tensor - theirs[key]).abs().max()) <= epsilon * scale[model] + rounding, (model, key)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_hindsight_changes_measurements_alone(problem: str, name: str) -> None:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of(name, fleet, **SETTINGS[name])
    runs = []
    for hindsight in (True, False):
        simulation = make_simulation(policy, fleet, dictionary, stream, seed=9, hindsight=hindsight)
        runs.append((list(simulation.exchanges()), simulation.parameters()))
    (seen, parameters), (unseen, others) = runs
    for one, other in zip(seen, unseen, strict=True):
        assert np.isfinite(one.losses).all()
        assert (np.isfinite(other.losses) == other.plan.held[:, None]).all()
        assert one.scores.tobytes() == other.scores.tobytes()
        assert one.plan.held.tolist() == other.plan.held.tolist()
    for mine, theirs in zip(parameters, others, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_the_inequality_of_the_proof_holds_on_simulated_runs() -> None:
    """(7ap) for every client and model, with an interval, from the records of a run."""
    dictionary, stream = image_problem()
    fleet = fleet_for(dictionary, stream, 5)
    rate = 0.4
    policy = policy_of("ofms-ft", fleet, learning_rate=rate, loss_bound="saturate", fine_tuning_rate=0.05)
    mixed, squares = np.zeros(stream.clients), np.zeros(stream.clients)
    totals = np.zeros((stream.clients, len(dictionary)))
    for exchange in make_simulation(policy, fleet, dictionary, stream, seed=3).exchanges():
        losses = selection_loss(exchange.losses, "saturate").sum(axis=1)
        estimates = np.where(exchange.plan.held, losses / exchange.plan.inclusion, 0.0)
        assert exchange.plan.inclusion == pytest.approx(
            inclusion_probabilities(
                exchange.expected_weights,
                partition_models(fleet.catalogue.storage, fleet.budgets).clusters[
                    np.unique(fleet.budgets, return_inverse=True)[1]
                ],
            )
        )
        mixed += (exchange.expected_weights * estimates).sum(axis=1)
        squares += (exchange.expected_weights * estimates**2).sum(axis=1)
        totals += estimates
    limit = np.log(len(dictionary)) / rate + rate / 2 * squares
    assert (mixed[:, None] - totals <= limit[:, None] + 1e-9).all()


def test_perfedavg_predicts_with_a_copy_adapted_to_the_past() -> None:
    """One linear model by hand: θ' = θ - a · 2 mean((θx - y) x) over the past samples, never the current one."""
    layers = {name: torch.nn.Linear(1, 1) for name in ("a", "b")}
    for layer in layers.values():
        torch.nn.init.constant_(layer.weight, 1.0)
        torch.nn.init.constant_(layer.bias, 0.0)
    modules: dict[str, torch.nn.Module] = {name: torch.nn.Sequential(layer) for name, layer in layers.items()}
    dictionary = Dictionary.from_modules(modules, task="regression")
    x = np.array([[[1.0], [2.0], [3.0]]], dtype=np.float32)
    y = np.array([[3.0, 3.0, 5.0]])
    fleet = fleet_for(dictionary, Stream(x, y, "regression"), 1)
    policy = policy_of("perfedavg", fleet, local_rate=0, adaptation_rate=0.1, window=2)
    simulations = [
        make_simulation(policy, fleet, dictionary, Stream(x, y, "regression"), seed=0, loopback=loopback)
        for loopback in (False, True)
    ]
    for simulation in simulations:
        client_losses = [exchange.client_losses[0, 0, 0] for exchange in simulation.exchanges()]
        assert client_losses[0] == pytest.approx((1 - 3) ** 2), "nothing to adapt to yet"
        weight, bias = 1 + 0.1 * 2 * 2 * 1, 0.1 * 2 * 2
        assert client_losses[1] == pytest.approx((2 * weight + bias - 3) ** 2, rel=1e-5)
        residuals = np.array([1 - 3, 2 - 3])
        weight, bias = 1 - 0.1 * 2 * np.mean(residuals * [1, 2]), -0.1 * 2 * np.mean(residuals)
        assert client_losses[2] == pytest.approx((3 * weight + bias - 5) ** 2, rel=1e-5)


@pytest.mark.parametrize("name", ["ofms-ft", "rms-ft", "b-fed-omft"])
def test_simulator_and_loopback_agree_by_use(name: str) -> None:
    fused, parameters, loopback, expected = both("regression", name, 2, torch.float64, gradient_weight="use")
    for one, other in zip(fused, loopback, strict=True):
        # Losses of one client and of all at once differ in the last bits on some processors.
        assert one.plan.update_weight == pytest.approx(other.plan.update_weight, rel=1e-9, abs=1e-12)
    weights = np.stack([one.plan.update_weight for one in fused])
    assert weights.max() > 0
    for model, same in zip(parameters, expected, strict=True):
        for key in model:
            assert model[key] == pytest.approx(same[key], rel=1e-9, abs=1e-12)


def test_the_policy_learns_from_the_bounded_loss() -> None:
    dictionary, stream = image_problem()
    fleet = fleet_for(dictionary, stream, 1)
    for bound in ("saturate", "raw"):
        policy = policy_of("ofms-ft", fleet, learning_rate=1.0, loss_bound=bound, fine_tuning_rate=0)
        first, second = list(make_simulation(policy, fleet, dictionary, stream, seed=3).exchanges())[:2]
        losses = selection_loss(first.losses[:, 0], bound)
        estimates = np.where(first.plan.held, losses / first.plan.inclusion, 0.0)
        weights = np.exp(-estimates)
        assert second.expected_weights == pytest.approx(weights / weights.sum(axis=1, keepdims=True), rel=1e-5)


def test_only_trainable_parameters_change() -> None:
    whole, stream = regression_problem()
    modules = {model.name: model.module for model in whole.models}
    dictionary = Dictionary.from_modules(modules, task="regression", trainable=["0.*"])
    assert (dictionary.catalogue().upload < dictionary.catalogue().storage).all()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of("ofms-ft", fleet, fine_tuning_rate=0.1)
    fused = make_simulation(policy, fleet, dictionary, stream, seed=0)
    loopback = LoopbackSimulation(policy, fleet, dictionary, stream, seed=0)
    list(fused.exchanges()), list(loopback.exchanges())
    for model, mine, theirs in zip(dictionary.models, fused.parameters(), loopback.parameters(), strict=True):
        for key, tensor in mine.items():
            assert tensor == pytest.approx(theirs[key], abs=1e-4)
            assert torch.equal(tensor, model.tensors[key]) != key.startswith("0.")


def test_perfedavgs_frozen_score_adapts_too() -> None:
    """With a rate so small that fine-tuning changes nothing, the frozen dictionary scores the same."""
    dictionary, stream = regression_problem()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of("perfedavg", fleet, local_rate=1e-12, adaptation_rate=0.05, window=5)
    for loopback in (False, True):
        for exchange in make_simulation(policy, fleet, dictionary, stream, seed=0, loopback=loopback).exchanges():
            assert exchange.frozen_scores == pytest.approx(exchange.scores, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_global_model_alone_is_fine_tuned_and_downloaded_anew(problem: str) -> None:
    """The others keep their bits, so that clients that hold them need not download them again."""
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of("late-hedge", fleet, window=8, warm_up=2, model=1)
    simulation = make_simulation(policy, fleet, dictionary, stream, seed=5, dtype=torch.float32)
    exchanges = list(simulation.exchanges())
    for model, (after, before) in enumerate(zip(simulation.parameters(), dictionary.models, strict=True)):
        same = [torch.equal(after[name], tensor.float()) for name, tensor in before.tensors.items()]
        assert all(same) == (model != 1)
    last = exchanges[-1].grants
    assert [bool(version) for version in last.version] == [model == 1 for model in range(len(dictionary))]
    roomy = fleet.budgets >= fleet.catalogue.storage[1] + 2 * fleet.catalogue.storage.max()
    for exchange in exchanges[3:]:
        assert exchange.plan.held[roomy, 1].all()
        assert (exchange.grants.sent[:, 1] == exchange.plan.held[:, 1]).all(), "it moves in every exchange"
        assert (exchange.plan.update_weight[:, [0, *range(2, len(dictionary))]] == 0).all()


@pytest.mark.parametrize("tuned", [BY_USE, {"fine_tuned": "global", "model": 1}], ids=["by use", "global"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_models_that_fine_tuning_made_worse_go_back(problem: str, tuned: dict[str, Any]) -> None:
    """Steps a hundred times too long make models worse: both simulators go back to the same first versions."""
    settings = {"fine_tuning_rate": 100.0, "control_every": 2, "tune_every": 1, "warm_up": 0} | tuned
    fused, parameters, loopback, expected = both(problem, "late-hedge", 1, torch.float64, **settings)
    controls = [exchange for exchange in fused if exchange.index > 1 and exchange.index % 2]
    assert not any(exchange.grants.version.any() for exchange in controls), "first versions are granted"
    assert not any(exchange.plan.update_weight.any() for exchange in controls), "nothing is fine-tuned"
    # Between two other exchanges, fine-tuning makes one new version and going back another.
    versions = np.array([exchange.grants.version for exchange in fused if exchange not in controls])
    assert (np.diff(versions[2:], axis=0) == 2).any()
    first = [model.tensors for model in PROBLEMS[problem]()[0].models]
    for one, other in zip(fused, loopback, strict=True):
        assert one.grants.version.tolist() == other.grants.version.tolist()
        assert one.plan.held.tolist() == other.plan.held.tolist()
    for tensors, mine, theirs in zip(first, parameters, expected, strict=True):
        for name, tensor in tensors.items():
            assert torch.equal(mine[name], tensor.double()) == torch.equal(theirs[name], tensor.double())
