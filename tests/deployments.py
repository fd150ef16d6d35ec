"""Deployments of the regression problem in a folder, without processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ofms.coordinator.deployment import ServerConfig, write_config
from ofms.coordinator.keys import add_device, make_deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.storage.envelope import Envelope, decode
from tests.devices import CLIENTS, budgets_for, flat_parameters, label_samples, open_devices, problem

SETTINGS = {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "loss_bound": "raw"}


def make_fleet(folder: Path, **changes: Any) -> Path:
    """A deployment of the regression problem in which every device uploads."""
    dictionary, _ = problem()
    dictionary.write(folder / "models")
    make_deployment(folder, "127.0.0.1:9092", folder / "models", policy="ofms-ft", rounds=12)
    config = ServerConfig(
        address="127.0.0.1:9092",
        models="models",
        policy="ofms-ft",
        rounds=12,
        interval=2,
        bandwidth="200%",
        seed=5,
        settings=SETTINGS,
    )
    write_config(folder, msgspec.structs.replace(config, **changes))
    for client, budget in enumerate(budgets_for(dictionary).tolist()):
        add_device(folder, f"device-{client}", f"{budget}B", "127.0.0.1:9092")
    return folder


class DirectFleet:
    """Devices whose messages are passed to a coordinator directly."""

    def __init__(self, folder: Path) -> None:
        dictionary, self.stream = problem()
        self.devices = open_devices(folder, dictionary)

    def join(self, persistence: PersistentCoordinator) -> None:
        for client, device in enumerate(self.devices):
            device.receive(persistence.coordinator.welcome(client))
            persistence.receive(client, self.envelope(client))

    def envelope(self, client: int) -> Envelope:
        """The message that a device has for the server."""
        return decode(self.devices[client].collect() or b"")

    def exchange(self, persistence: PersistentCoordinator) -> None:
        """Run one exchange of all devices."""
        self.answer_all(persistence)
        persistence.close_exchange()

    def answer_all(self, persistence: PersistentCoordinator) -> None:
        """Open an exchange and pass on every device's answer; the exchange stays open."""
        steps = range(*persistence.coordinator.fleet.schedule.span(persistence.coordinator.exchange))
        for client, content in persistence.coordinator.open(set(range(CLIENTS))).items():
            self.devices[client].receive(content)
            self.label(client, steps)
            persistence.receive(client, self.envelope(client))

    def label(self, client: int, steps: Iterable[int]) -> None:
        """Predict and label samples on one device."""
        label_samples(self.devices[client], self.stream.x[client], self.stream.y[client], steps)

    def close(self) -> None:
        for device in self.devices:
            device.close()


def parameters(persistence: PersistentCoordinator) -> list[dict[str, list[float]]]:
    return flat_parameters(persistence.coordinator.tensors)
