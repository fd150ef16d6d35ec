"""Compute on threads: the number of workers, the device of tensors, the mixture of outputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ofms.compute import threads
from ofms.compute.protocol import Adaptation, Evaluation, Tensors
from ofms.compute.threads import ThreadedCompute
from ofms.core.errors import InvalidInput
from ofms.core.pooling import Pooling
from ofms.core.schedule import Window
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate
from tests.problems import PROBLEMS, regression_problem, updates_of

LOCAL: list[LocalUpdate] = [
    GradientStep(0.1, window=3, warm_up=0),
    Epochs(0.1, epochs=2, batch_size=2, window=3, warm_up=0),
    Adapted(0.1, adaptation_rate=0.1, epochs=1, batch_size=2, window=3, warm_up=0),
]


def train_and_evaluate(problem: str, workers: int) -> tuple[Evaluation, list[Tensors]]:
    """Every kind of update, applied, then an evaluation of all models and adapted copies; the final parameters."""
    dictionary, stream = PROBLEMS[problem]()
    clients, models = stream.clients, len(dictionary)
    held = np.arange(clients * models).reshape(clients, models) % 3 > 0
    weights = held / held.sum(axis=1, keepdims=True)
    window = Window(2, np.full(3, 1 / 3))
    with ThreadedCompute(dictionary, stream, device="cpu", workers=workers) as compute:
        for local in LOCAL:
            updates = updates_of(compute, window, weights, local, weights)
            compute.apply(updates, np.full(models, 0.5))
        adaptation = Adaptation(window, 0.1)
        evaluation = compute.evaluate((5, 7), held, weights, hindsight=True, adaptation=adaptation).result()
        return evaluation, [compute.state(model) for model in range(models)]


def assert_same_bits(one: tuple[Evaluation, list[Tensors]], other: tuple[Evaluation, list[Tensors]]) -> None:
    for name in ("scores", "client_losses", "losses", "model_scores"):
        assert getattr(one[0], name).tobytes() == getattr(other[0], name).tobytes(), name
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_results_do_not_depend_on_the_number_of_workers(problem: str) -> None:
    expected = train_and_evaluate(problem, workers=1)
    for workers in (2, 5, 2):
        assert_same_bits(train_and_evaluate(problem, workers), expected)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_tensor_is_on_the_given_device(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another default device would take every tensor made without a device, and computing with it would fail."""
    expected = train_and_evaluate(problem, workers=2)

    def elsewhere() -> None:
        torch.set_default_device("meta")

    monkeypatch.setattr(threads, "ThreadPoolExecutor", partial(ThreadPoolExecutor, initializer=elsewhere))
    default: Any = torch.get_default_device()
    # A dictionary is built on the default device, before.
    dictionary, stream = PROBLEMS[problem]()
    monkeypatch.setitem(PROBLEMS, problem, lambda: (dictionary, stream))
    torch.set_default_device("meta")
    try:
        found = train_and_evaluate(problem, workers=2)
    finally:
        torch.set_default_device(default)
    assert_same_bits(found, expected)


def test_a_client_predicts_with_the_weighted_mean_of_its_models() -> None:
    dictionary, stream = regression_problem(clients=2, rounds=4)
    weights = np.zeros((2, 6))
    weights[0, [1, 4]] = [0.25, 0.75]
    weights[1, 2] = 1.0
    with ThreadedCompute(dictionary, stream) as compute:
        found = compute.evaluate((1, 3), weights > 0, weights, hindsight=False).result()
    x = torch.from_numpy(stream.x[:, 1:3])
    with torch.no_grad():
        outputs = [model.module(x).double().numpy()[..., 0] for model in dictionary.models]
    mixed = np.stack([0.25 * outputs[1][0] + 0.75 * outputs[4][0], outputs[2][1]])
    assert found.scores == pytest.approx((mixed - stream.y[:, 1:3]) ** 2, rel=1e-5)
    assert (np.isfinite(found.losses) == (weights > 0)[:, None]).all()
    assert found.client_losses is not None
    assert found.losses[1, :, 2] == pytest.approx((outputs[2][1] - stream.y[1, 1:3]) ** 2, rel=1e-5)


def test_classes_are_pooled_by_their_mean_log_probabilities_or_probabilities() -> None:
    dictionary, stream = PROBLEMS["images"]()
    weights = np.zeros((stream.clients, len(dictionary)))
    weights[:, [0, 1, 3]] = [0.5, 0.2, 0.3]
    x, y = torch.from_numpy(stream.x[:, 2:4]).flatten(0, 1), stream.y[:, 2:4]
    with torch.no_grad():
        logs = torch.stack([model.module.eval()(x).double().log_softmax(dim=1) for model in dictionary.models])
    # A thousandth of the uniform distribution keeps log-probabilities finite.
    smoothed = (0.999 * logs.exp() + 0.001 / 3).log()
    shares = torch.from_numpy(weights[0])[:, None, None]
    pools = {"log": (shares * smoothed).sum(dim=0), "mean": (shares * logs.exp()).sum(dim=0).log()}
    with ThreadedCompute(dictionary, stream) as compute:
        pooling: Pooling
        for pooling in ("log", "mean"):
            found = compute.evaluate((2, 4), weights > 0, weights, hindsight=False, pooling=pooling).result()
            expected = pools[pooling]
            losses = torch.nn.functional.cross_entropy(expected, torch.from_numpy(y).flatten(), reduction="none")
            assert found.prediction_losses == pytest.approx(losses.reshape(y.shape).numpy(), rel=1e-5)
            right = expected.argmax(dim=1).reshape(y.shape).numpy() == y
            assert (found.scores == 1).tolist() == right.tolist()


def test_no_workers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="workers = 0"):
        ThreadedCompute(*regression_problem(), workers=0)
