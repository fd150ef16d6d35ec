"""A fleet of three devices on a small regression problem, and the messages that it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ofms.coordinator.coordinator import Coordinator
from ofms.core.typing import AnyArray, Flags, Integers
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


def budgets_for(dictionary: Dictionary) -> Integers:
    return np.array([2 + client % 3 for client in range(CLIENTS)]) * int(dictionary.catalogue().storage.max())


def open_devices(folder: Path, dictionary: Dictionary) -> list[Device]:
    return [
        Device(folder / str(client), budget=int(budget), mail=False)
        for client, budget in enumerate(budgets_for(dictionary))
    ]


def coordinator_for(
    dictionary: Dictionary, policy: str, interval: int = 1, rounds: int | None = ROUNDS, **settings: Any
) -> Coordinator:
    budgets = budgets_for(dictionary)
    return Coordinator(
        dictionary,
        budgets=budgets,
        bandwidth=int(budgets.sum()) // 2,
        rounds=rounds,
        interval=interval,
        policy=policy,
        settings=SETTINGS[policy] | settings,
        seed=5,
    )


def coordinator_of_one() -> tuple[Coordinator, int, AnyArray, AnyArray]:
    """A coordinator of a single device with four exchanges of two samples; the device's budget, inputs and targets."""
    dictionary, stream = problem()
    budget = 3 * int(dictionary.catalogue().storage.max())
    settings = {"learning_rate": 0.5, "fine_tuning_rate": 0.05}
    coordinator = Coordinator(
        dictionary,
        budgets=np.array([budget]),
        bandwidth=2 * budget,
        rounds=8,
        interval=2,
        policy="ofms-ft",
        settings=settings,
    )
    return coordinator, budget, stream.x[0], stream.y[0]


def label_samples(device: Device, x: AnyArray, y: AnyArray, steps: Iterable[int]) -> None:
    """Predict samples of a device's stream, each with its label at once; after the last, the stream starts again."""
    for step in (step % len(x) for step in steps):
        device.feedback(device.predict(x[step]).id, float(y[step]))


def flat_parameters(tensors: Iterable[Mapping[str, torch.Tensor]]) -> list[dict[str, list[float]]]:
    """Parameters as plain numbers, so that they can be compared."""
    return [{name: tensor.flatten().tolist() for name, tensor in each.items()} for each in tensors]


def granted_device(folder: Path, policy: str, **settings: Any) -> tuple[Device, Coordinator]:
    """The first device of the fleet in its first exchange, which has four samples, and its coordinator."""
    dictionary, _ = problem()
    coordinator = coordinator_for(dictionary, policy, interval=4, **settings)
    devices = open_devices(folder, dictionary)
    for client, each in enumerate(devices):
        each.receive(coordinator.welcome(client))
    grants = coordinator.run_exchange({client: each.collect() or b"" for client, each in enumerate(devices)})
    for client, each in enumerate(devices):
        each.receive(grants[client])
        if client:
            each.close()
    return devices[0], coordinator


def grant_arrays(held: Flags) -> dict[str, AnyArray]:
    """The arrays of a grant to client 0 that sends every model held."""
    uploads, first = np.array([False]), np.array([0])
    arrays = {"held": held, "sent": held, "client": first, "version": np.zeros(6, np.int64), "uploads": uploads}
    return {f"grant.{name}": array for name, array in arrays.items()}


def model_array(tensors: Mapping[str, torch.Tensor]) -> AnyArray:
    """Tensors as a grant carries them."""
    return np.frombuffer(encode_tensors(tensors), dtype=np.uint8)


def grant_of(coordinator: Coordinator, models: list[int], exchange: int = 1) -> bytes:
    """A grant to client 0 that sends some models, requested or not."""
    held = np.zeros((1, 6), dtype=np.bool_)
    held[0, models] = True
    arrays = grant_arrays(held) | {f"model.{model}": model_array(coordinator.tensors[model]) for model in models}
    return encode(Envelope("grant", grant_values(coordinator, exchange), arrays))


def grant_values(coordinator: Coordinator, exchange: int = 1) -> dict[str, Any]:
    """The values of a grant."""
    own = {"deployment": coordinator.deployment, "revision": coordinator.fleet.catalogue.revision}
    return own | {"exchange": exchange, "groups": 1, "opening": "an opening"}
