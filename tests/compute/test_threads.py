"""The compute of this machine: what it is told about devices and workers reaches every tensor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ofms.compute import threads
from ofms.compute.protocol import Adaptation, Compute, Evaluation
from ofms.compute.threads import ThreadedCompute
from ofms.core.errors import InvalidInput
from ofms.core.schedule import Window
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate
from tests.problems import image_problem, regression_problem

PROBLEMS = {"regression": regression_problem, "images": image_problem}
LOCAL: list[LocalUpdate] = [
    GradientStep(0.1, window=3, warm_up=0),
    Epochs(0.1, epochs=2, batch_size=2, window=3, warm_up=0),
    Adapted(0.1, adaptation_rate=0.1, epochs=1, batch_size=2, window=3, warm_up=0),
]


def everything(problem: str) -> tuple[Evaluation, list[dict[str, torch.Tensor]]]:
    """All that a compute does, on the processor."""
    dictionary, stream = PROBLEMS[problem]()
    clients, models = stream.clients, len(dictionary)
    held = np.arange(clients * models).reshape(clients, models) % 3 > 0
    weights = held / held.sum(axis=1, keepdims=True)
    window = Window(2, np.full(3, 1 / 3))
    compute: Compute
    with ThreadedCompute(dictionary, stream, device="cpu", workers=2) as compute:
        for local in LOCAL:
            updates = compute.update(window, weights, local).result()
            compute.apply(updates, np.full(models, 0.5))
        adaptation = Adaptation(window, 0.1)
        evaluation = compute.evaluate(
            (5, 7), held, weights, observed=held, hindsight=True, adaptation=adaptation
        ).result()
        return evaluation, [compute.state(model) for model in range(models)]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_tensor_is_where_it_was_told_to_be(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another default device, a tensor that is made without naming one lands there, and nothing computes."""
    expected, parameters = everything(problem)

    def elsewhere() -> None:
        torch.set_default_device("meta")

    monkeypatch.setattr(threads, "ThreadPoolExecutor", partial(ThreadPoolExecutor, initializer=elsewhere))
    default: Any = torch.get_default_device()
    # Networks are built before, as a dictionary's are.
    dictionary, stream = PROBLEMS[problem]()
    monkeypatch.setitem(PROBLEMS, problem, lambda: (dictionary, stream))
    torch.set_default_device("meta")
    try:
        found, others = everything(problem)
    finally:
        torch.set_default_device(default)
    for name in ("scores", "client_losses", "losses", "model_scores"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()
    for mine, theirs in zip(parameters, others, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_outputs_are_mixed_in_the_order_of_the_models() -> None:
    """Values are averaged with the weights, whatever other models say."""
    dictionary, stream = regression_problem(clients=2, rounds=4)
    weights = np.zeros((2, 6))
    weights[0, [1, 4]] = [0.25, 0.75]
    weights[1, 2] = 1.0
    with ThreadedCompute(dictionary, stream) as compute:
        found = compute.evaluate((1, 3), weights > 0, weights, observed=weights > 0, hindsight=False).result()
    x = torch.from_numpy(stream.x[:, 1:3])
    with torch.no_grad():
        said = [model.module(x).double().numpy()[..., 0] for model in dictionary.models]
    mixed = np.stack([0.25 * said[1][0] + 0.75 * said[4][0], said[2][1]])
    assert found.scores == pytest.approx((mixed - stream.y[:, 1:3]) ** 2, rel=1e-5)
    assert (np.isfinite(found.losses) == (weights > 0)[:, None]).all()
    assert found.client_losses is not None
    assert found.losses[1, :, 2] == pytest.approx((said[2][1] - stream.y[1, 1:3]) ** 2, rel=1e-5)


def test_no_workers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="workers = 0"):
        ThreadedCompute(*regression_problem(), workers=0)
