"""Small fleets, policies, dictionaries and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ofms.compute.group import ALONE
from ofms.compute.protocol import Tensors
from ofms.compute.threads import ThreadedCompute
from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.registry import build_policy, settings_type
from ofms.testing.fleets import catalogue_of as catalogue_of
from ofms.testing.fleets import fleet_of as fleet_of


def fleet_for(dictionary: Dictionary, stream: Stream, interval: int) -> Fleet:
    """A fleet with memory for two to four models and bandwidth for half of the clients."""
    catalogue = dictionary.catalogue()
    largest = int(catalogue.storage.max())
    budgets = np.array([(2 + client % 3) * largest for client in range(stream.clients)], dtype=np.int64)
    return Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(stream.rounds, interval))


def policy_of(name: str, fleet: Fleet, **settings: Any) -> Policy:
    return build_policy(name, settings_type(name)(**settings), fleet)


def _seeded(architectures: list[tuple[str, dict[str, Any]]]) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = [build_module(*each) for each in architectures]
        for module in modules:
            for layer in module.modules():
                if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                    assert layer.running_mean is not None
                    assert layer.running_var is not None
                    layer.running_mean.normal_(std=0.3)
                    layer.running_var.uniform_(0.5, 2.0)
    return modules


def regression_problem(clients: int = 6, rounds: int = 20) -> tuple[Dictionary, Stream]:
    """Six multi-layer perceptrons of two sizes on random regression data."""
    sizes = [[8, 8], [5]] * 3
    architectures = [("mlp", {"inputs": 3, "hidden": hidden, "outputs": 1}) for hidden in sizes]
    modules = {f"net{index}": module for index, module in enumerate(_seeded(architectures))}
    random = np.random.default_rng(1)
    x = random.normal(size=(clients, rounds, 3)).astype(np.float32)
    y = np.tanh(x[..., 0] + 0.3 * np.arange(clients)[:, None]).astype(np.float32)
    return Dictionary.from_modules(modules, task="regression"), Stream(x, y, "regression")


def image_problem(clients: int = 5, rounds: int = 12) -> tuple[Dictionary, Stream]:
    """Four small convolutional networks with batch norm and dropout on random images of three classes."""
    options = {"image": [2, 8, 8], "dense": 6, "classes": 3, "batch_norm": True}
    architectures = [
        ("vgg", options | {"blocks": [[4]], "dropout": [0.2, 0.5]}),
        ("vgg", options | {"blocks": [[3], [5]], "pool": [True, False], "dropout": [0.1, 0.2, 0.3]}),
    ] * 2
    modules = {f"net{index}": module for index, module in enumerate(_seeded(architectures))}
    random = np.random.default_rng(2)
    x = random.normal(size=(clients, rounds, 2, 8, 8)).astype(np.float32)
    return (
        Dictionary.from_modules(modules, task="classification"),
        Stream(x, random.integers(0, 3, size=(clients, rounds)), "classification"),
    )


PROBLEMS = {"regression": regression_problem, "images": image_problem}


def updates_of(compute: ThreadedCompute, *given: Any) -> dict[int, Tensors]:
    """The clients' updates, summed over shards."""
    return ALONE.total(compute.update(*given).result().shards, compute.block, compute.like)
