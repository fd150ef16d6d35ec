"""A coordinator and its devices in one process, without a transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ofms.coordinator.coordinator import Coordinator
from ofms.storage.envelope import Envelope, decode
from tests.devices import budgets_for, flat_parameters, label_samples, open_devices, problem

INTERVAL, ROUNDS, SEED = 2, 12, 5
SETTINGS: dict[str, Any] = {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "loss_bound": "raw"}


class LocalFleet:
    """A coordinator and its devices, exchange by exchange; every device uploads."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.dictionary, self.stream = problem()
        self.budgets = budgets_for(self.dictionary)
        bandwidth = 2 * int(self.budgets.sum())
        options: dict[str, Any] = {"rounds": ROUNDS, "interval": INTERVAL, "settings": SETTINGS, "seed": SEED} | given
        options = {"policy": "ofms-ft"} | options
        self.coordinator = Coordinator(self.dictionary, budgets=self.budgets, bandwidth=bandwidth, **options)
        self.devices = open_devices(folder, self.dictionary)
        for client, device in enumerate(self.devices):
            device.receive(self.coordinator.welcome(client))
            self.coordinator.receive(client, self.envelope(client))

    def envelope(self, client: int) -> Envelope:
        """The message that a device has for the coordinator."""
        content = self.devices[client].collect()
        assert content is not None
        return decode(content)

    def grant(self, clients: list[int] | None = None) -> dict[int, Envelope]:
        """Open an exchange and label its samples; the devices' answers."""
        grants = self.coordinator.open(clients)
        for client, content in grants.items():
            self.devices[client].receive(content)
        return {client: self.answer(client) for client in grants}

    def answer(self, client: int) -> Envelope:
        """Label the samples of the open exchange on one device; its answer."""
        first, stop = self.coordinator.fleet.schedule.span(self.coordinator.exchange)
        label_samples(self.devices[client], self.stream.x[client], self.stream.y[client], range(first, stop))
        return self.envelope(client)

    def parameters(self) -> list[dict[str, list[float]]]:
        return flat_parameters(self.coordinator.tensors)

    def close(self) -> None:
        for device in self.devices:
            device.close()
