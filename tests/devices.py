"""A small fleet of devices, and the problem that it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ofms.data.stream import Stream
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from tests.problems import regression_problem

CLIENTS, ROUNDS = 3, 12


def problem() -> tuple[Dictionary, Stream]:
    """The regression problem, with architectures that a device can build."""
    _, stream = regression_problem(CLIENTS, ROUNDS)
    architectures = {
        f"net{index}": ("mlp", {"inputs": 3, "hidden": hidden, "outputs": 1})
        for index, hidden in enumerate([[8, 8], [5]] * 3)
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {name: build_module(*each) for name, each in architectures.items()}
    return Dictionary.from_modules(modules, task="regression", architectures=architectures), stream


def budgets_for(dictionary: Dictionary) -> np.ndarray:
    return np.array([(2 + client % 3) for client in range(CLIENTS)]) * int(dictionary.catalogue().storage.max())


def open_devices(folder: Path, dictionary: Dictionary) -> list[Device]:
    return [
        Device(folder / str(client), budget=int(budget), mail=False)
        for client, budget in enumerate(budgets_for(dictionary))
    ]
