"""Clients' own copies of a model against each client's own training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ofms.compute import updates
from ofms.compute.local import LocalNetworks
from ofms.compute.own_copies import OwnCopies
from ofms.core.schedule import Window
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.local_updates import Epochs, GradientStep, LocalUpdate
from ofms.simulator.simulation import make_simulation
from tests.problems import PROBLEMS, fleet_for, policy_of, regression_problem

WINDOW = Window(2, np.array([0.5, 1.0, 0.5]))
LOCAL: dict[str, LocalUpdate] = {
    "gradient step": GradientStep(0.1, window=3, warm_up=0),
    "epochs": Epochs(0.1, epochs=2, batch_size=2, window=3, warm_up=0),
}


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_copies_are_trained_as_each_client_trains_its_own(
    problem: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "_VALUES_AT_ONCE", 300)
    dictionary, stream = PROBLEMS[problem]()
    own = OwnCopies(dictionary, stream, 1, dtype=torch.float64)
    clients = np.arange(stream.clients) != 2
    own.train(WINDOW, clients, LOCAL[kind])
    found = own.state()
    models = [model.module.to(torch.float64) for model in dictionary.models]
    networks = LocalNetworks(models, [model.trainable for model in dictionary.models], stream.task)
    tensors = {name: tensor.double() for name, tensor in dictionary.models[1].tensors.items()}
    for client in range(stream.clients):
        x = torch.from_numpy(stream.x[client, WINDOW.first : WINDOW.stop]).double()
        y = torch.from_numpy(stream.y[client, WINDOW.first : WINDOW.stop])
        y = y if stream.task == "classification" else y.double()
        update = networks.update(1, tensors, x, y, WINDOW.weights, 1.0, LOCAL[kind])
        for name, part in update.items():
            expected = tensors[name] + part if clients[client] else tensors[name]
            assert found[name][client].numpy() == pytest.approx(expected.numpy(), abs=1e-10)


def test_a_copy_starts_anew_when_its_model_is_sent_again() -> None:
    dictionary, stream = regression_problem()
    own = OwnCopies(dictionary, stream, 0)
    before, everybody = own.state(), np.ones(stream.clients, dtype=np.bool_)
    own.train(WINDOW, everybody, LOCAL["gradient step"])
    trained = own.state()
    own.start(np.arange(stream.clients) < 2)
    for name, tensor in own.state().items():
        assert torch.equal(tensor[:2], before[name][:2])
        assert torch.equal(tensor[2:], trained[name][2:])
    own.load_state(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state().items())


def test_a_copy_that_would_not_be_finite_stays_as_it_is() -> None:
    dictionary, stream = regression_problem()
    x = stream.x.copy()
    x[3, WINDOW.first] = 1e30
    own = OwnCopies(dictionary, Stream(x, stream.y, "regression"), 1)
    before, everybody = own.state(), np.ones(stream.clients, dtype=np.bool_)
    assert own.train(WINDOW, everybody, GradientStep(0.1, window=3, warm_up=0)) == [(3, 1)]
    for name, tensor in own.state().items():
        assert torch.equal(tensor[3], before[name][3])
        assert bool(torch.isfinite(tensor).all())
        assert not any(torch.equal(tensor[client], before[name][client]) for client in (0, 1, 2, 4, 5))


def test_each_client_predicts_with_its_own_copy() -> None:
    """One weight and one bias by hand: θ' = θ - η ∇(wx + b - y)²; the shared model stays as it was."""
    layers = {name: torch.nn.Linear(1, 1) for name in ("federated", "local")}
    for layer in layers.values():
        torch.nn.init.constant_(layer.weight, 1.0)
        torch.nn.init.constant_(layer.bias, 0.0)
    modules: dict[str, torch.nn.Module] = {name: torch.nn.Sequential(layer) for name, layer in layers.items()}
    dictionary = Dictionary.from_modules(modules, task="regression")
    x = np.array([[[1.0], [2.0]], [[2.0], [1.0]]], dtype=np.float32)
    y = np.array([[3.0, 3.0], [1.0, 4.0]])
    stream = Stream(x, y, "regression")
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of("fed-poe", fleet, fine_tuning_rate=0.1, window=1, learning_rate=0.0)
    for loopback in (False, True):
        simulation = make_simulation(policy, fleet, dictionary, stream, seed=0, loopback=loopback)
        first, second = simulation.exchanges()
        assert first.client_losses[:, 0, 1].tolist() == pytest.approx([4, 1])
        # Residuals -2 and 1: (w, b) become (1.4, 0.4) and (0.6, -0.2).
        own = [2 * 1.4 + 0.4, 0.6 - 0.2]
        assert second.client_losses[:, 0, 1].tolist() == pytest.approx([(own[0] - 3) ** 2, (own[1] - 4) ** 2], rel=1e-5)
        assert second.losses[:, 0, 1].tolist() == pytest.approx([1, 9]), "the shared model, in hindsight"
        # The federated model moves by the mean of both clients' steps, to (1, 0.1); both models predict equally.
        mixed = np.array([(own[0] + 2.1) / 2, (own[1] + 1.1) / 2])
        assert second.scores[:, 0].tolist() == pytest.approx(((mixed - y[:, 1]) ** 2).tolist(), rel=1e-5)
        shared = simulation.parameters()[1]
        assert all(torch.equal(tensor, dictionary.models[1].tensors[name]) for name, tensor in shared.items())
