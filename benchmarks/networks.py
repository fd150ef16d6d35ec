"""The paper's networks and sizes on random data, so that benchmarks need no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft import build
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.protocol import Policy

MODELS, WINDOW, BUDGET = 20, 51, 5
_CIFAR = {"image": [3, 32, 32], "dense": 128, "classes": 10, "batch_norm": True}
_MNIST = {"image": [1, 28, 28], "classes": 10}


@dataclass(frozen=True)
class Case:
    """One of the paper's columns: architectures, shape of a sample, clients and bandwidth."""

    name: str
    architectures: Sequence[tuple[str, dict[str, Any]]]
    sample: tuple[int, ...]
    clients: int
    bandwidth: float

    @property
    def task(self) -> str:
        return "regression" if len(self.sample) == 1 else "classification"


AIR = Case("Air", [("mlp", {"inputs": 14, "hidden": [100] * 5, "outputs": 1})], (14,), 100, 0.5)
MNIST = Case(
    "MNIST",
    [
        ("vgg", _MNIST | {"blocks": [[32, 32]], "dense": 50}),
        ("vgg", _MNIST | {"blocks": [[32], [64, 64]], "dense": 100}),
    ],
    (1, 28, 28),
    50,
    1.1,
)
CIFAR10 = Case(
    "CIFAR-10",
    [
        ("vgg", _CIFAR | {"blocks": [[32, 32], [64, 64]], "dropout": [0.2, 0.3, 0.4]}),
        (
            "vgg",
            _CIFAR
            | {
                "blocks": [[32, 32], [64, 64], [128, 128]],
                "pool": [True, True, False],
                "dropout": [0.2, 0.3, 0.4, 0.4],
            },
        ),
    ],
    (3, 32, 32),
    50,
    1.1,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """A case ready to run; rounds from `WINDOW` on fine-tune."""

    dictionary: Dictionary
    stream: Stream
    fleet: Fleet
    policy: Policy


def make_problem(case: Case, rounds: int, warm_up: int = WINDOW) -> Problem:
    """Random networks and a random stream of a case's shapes, with the published settings."""
    torch.manual_seed(0)
    modules = {
        f"net{index}": build_module(*case.architectures[index % len(case.architectures)]) for index in range(MODELS)
    }
    random = np.random.default_rng(0)
    x = random.random((case.clients, rounds, *case.sample), dtype=np.float32)
    if case.task == "regression":
        dictionary, stream = (
            Dictionary.from_modules(modules, task="regression"),
            Stream(x, x.mean(axis=2), "regression"),
        )
    else:
        y = random.integers(0, 10, size=(case.clients, rounds))
        dictionary, stream = Dictionary.from_modules(modules, task="classification"), Stream(x, y, "classification")
    catalogue = dictionary.catalogue()
    budgets = np.full(case.clients, BUDGET * int(catalogue.storage.max()))
    fleet = Fleet(catalogue, budgets, int(case.bandwidth * budgets.sum()), Schedule(rounds))
    settings = OFMSFT(
        learning_rate="10/sqrt(T)",
        fine_tuning_rate=1e-6,
        importance_cap=20,
        loss_bound="raw",
        window=WINDOW,
        warm_up=warm_up,
    )
    return Problem(dictionary, stream, fleet, build(settings, fleet))
