"""A small fleet of devices, and the problem that it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ofms.coordinator.coordinator import Coordinator
from ofms.data.stream import Stream
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.storage.envelope import Envelope, encode
from ofms.storage.tensors import encode_tensors
from tests.policy_settings import SETTINGS
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


def coordinator_for(dictionary: Dictionary, policy: str, interval: int = 1, **settings: Any) -> Coordinator:
    budgets = budgets_for(dictionary)
    return Coordinator(
        dictionary,
        budgets=budgets,
        bandwidth=int(budgets.sum()) // 2,
        rounds=ROUNDS,
        interval=interval,
        policy=policy,
        settings=SETTINGS[policy] | settings,
        seed=5,
    )


def granted_device(folder: Path, policy: str) -> tuple[Device, Coordinator]:
    """The first device of the fleet in its first exchange, which has four samples, and its coordinator."""
    dictionary, _ = problem()
    coordinator = coordinator_for(dictionary, policy, interval=4)
    devices = open_devices(folder, dictionary)
    for client, each in enumerate(devices):
        each.receive(coordinator.welcome(client))
    grants = coordinator.run_exchange({client: each.collect() for client, each in enumerate(devices)})  # type: ignore[misc]
    for client, each in enumerate(devices):
        each.receive(grants[client])
        if client:
            each.close()
    return devices[0], coordinator


def grant_arrays(held: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a grant for client 0, which sends all that is held."""
    nobody, first = np.array([False]), np.array([0])
    arrays = {"held": held, "sent": held, "client": first, "version": np.zeros(6, np.int64), "uploads": nobody}
    return {f"grant.{name}": array for name, array in arrays.items()}


def model_array(tensors: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Tensors as a grant carries them."""
    return np.frombuffer(encode_tensors(tensors), dtype=np.uint8)


def grant_of(coordinator: Coordinator, models: list[int], exchange: int = 1) -> bytes:
    """A grant to client 0 that sends some models, whoever asked for them."""
    held = np.zeros((1, 6), dtype=np.bool_)
    held[0, models] = True
    arrays = grant_arrays(held) | {f"model.{model}": model_array(coordinator.tensors[model]) for model in models}
    return encode(Envelope("grant", grant_values(coordinator, exchange), arrays))


def grant_values(coordinator: Coordinator, exchange: int = 1) -> dict[str, Any]:
    """The values of a grant."""
    own = {"deployment": coordinator.deployment, "revision": coordinator.fleet.catalogue.revision}
    return own | {"exchange": exchange, "groups": 1, "opening": "an opening"}
