"""Dictionaries whose networks are exported for devices without PyTorch; each architecture is exported once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ofms.compute.client import Architecture, Backend, Description
from ofms.compute.onnx_client import OnnxClient
from ofms.compute.onnx_export import export_graphs
from ofms.compute.onnx_graphs import graphs_key
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.graphs import Graphs
from ofms.core.typing import AnyArray
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary, Task
from ofms.models.zoo import build_module

Choice = tuple[float | int, tuple[int, ...], tuple[int, ...]]
IMAGES: dict[str, Any] = {"image": [1, 10, 10], "blocks": [[4, 3]], "dense": 6, "classes": 4, "batch_norm": True}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], Task]] = {
    "images": ("vgg", IMAGES, "classification"),
    "digits": ("mlp", {"inputs": 64, "hidden": [12], "outputs": 10}, "classification"),
    "values": ("mlp", {"inputs": 3, "hidden": [8, 5], "outputs": 1}, "regression"),
}
MODELS = 5


@cache
def dictionary_of(problem: str) -> Dictionary:
    """Networks of one architecture with random parameters, and batch norm statistics that are not the initial ones."""
    architecture, options, task = ARCHITECTURES[problem]
    architectures = {f"net{index}": (architecture, options) for index in range(MODELS)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {name: build_module(*each) for name, each in architectures.items()}
        for module in modules.values():
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.uniform_(0.5, 1.5)
    return Dictionary.from_modules(modules, task=task, architectures=architectures)


@cache
def graphs_of(problem: str) -> Graphs:
    dictionary = dictionary_of(problem)
    model = dictionary.models[0]
    return Graphs(graphs_key(model, dictionary.task), export_graphs(model, dictionary.task))


def onnx_client(problem: str) -> OnnxClient:
    dictionary, graphs = dictionary_of(problem), graphs_of(problem)
    models = [Architecture(each.name, "", {}, each.trainable, graphs.key) for each in dictionary.models]
    arrays = {f"{graphs.key}.{kind}": np.frombuffer(each, np.uint8) for kind, each in graphs.contents.items()}
    return OnnxClient.build(Description(dictionary.task, models, arrays))


def samples_of(problem: str, count: int) -> tuple[AnyArray, AnyArray]:
    """Inputs and labels; those of `digits` are real ones."""
    random = np.random.default_rng(1)
    if problem == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        return (found.data[:count] / 16).astype(np.float32), found.target[:count]
    if problem == "images":
        y = random.integers(0, 4, count)
        return random.random((count, 1, 10, 10), dtype=np.float32) + y[:, None, None, None].astype(np.float32) / 4, y
    x = random.normal(size=(count, 3)).astype(np.float32)
    return x, x.sum(axis=1)


def coordinator_of(problem: str, *, graphs: bool = True, **given: Any) -> tuple[Coordinator, int]:
    """A coordinator of one device that holds two models, and the device's budget."""
    dictionary = dictionary_of(problem)
    budget = 2 * int(dictionary.catalogue().storage.max())
    exported = (lambda _: dict.fromkeys(range(MODELS), graphs_of(problem))) if graphs else None
    coordinator = Coordinator(
        dictionary, budgets=np.array([budget]), bandwidth=budget, interval=5, seed=3, graphs=exported, **given
    )
    coordinator.deployment = "0123456789abcdef"
    return coordinator, budget


def label(device: Device, x: AnyArray, y: AnyArray) -> list[Choice]:
    """Predict and label samples; predictions, the models held, and those that predicted."""
    found: list[Choice] = []
    for each, target in zip(x, y.tolist(), strict=True):
        prediction = device.predict(each)
        device.feedback(prediction.id, target)
        found.append((prediction.value, tuple(device.holding), tuple(device.predicting)))
    return found


def run_fleet(problem: str, store: Path, backend: Backend, exchanges: int) -> tuple[list[Choice], Coordinator]:
    """A whole run of one device: what it chose and predicted, and the coordinator with the tuned dictionary."""
    coordinator, budget = coordinator_of(problem)
    x, y = samples_of(problem, 5 * exchanges)
    choices: list[Choice] = []
    with Device(store, budget=budget, mail=False, backend=backend) as device:
        device.receive(coordinator.welcome(0))
        for exchange in range(exchanges):
            device.receive(coordinator.run_exchange({0: device.collect() or b""})[0])
            choices += label(device, x[5 * exchange : 5 * exchange + 5], y[5 * exchange : 5 * exchange + 5])
    return choices, coordinator
