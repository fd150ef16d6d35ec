"""A coordinator and its devices in one process, without a transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ofms.coordinator.coordinator import Coordinator
from ofms.storage.envelope import Envelope, decode
from tests.devices import budgets_for, open_devices, problem

INTERVAL, ROUNDS, SEED = 2, 12, 5
SETTINGS: dict[str, Any] = {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "loss_bound": "raw"}


class Bench:
    """A coordinator and its devices, exchange by exchange; everybody uploads."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.dictionary, self.stream = problem()
        self.budgets = budgets_for(self.dictionary)
        bandwidth = 2 * int(self.budgets.sum())
        options: dict[str, Any] = {"interval": INTERVAL, "settings": SETTINGS, "seed": SEED} | given
        self.coordinator = Coordinator(
            self.dictionary, budgets=self.budgets, bandwidth=bandwidth, rounds=ROUNDS, **options
        )
        self.devices = open_devices(folder, self.dictionary)
        for client, device in enumerate(self.devices):
            device.receive(self.coordinator.welcome(client))
            self.coordinator.receive(client, self.envelope(client))

    def envelope(self, client: int) -> Envelope:
        content = self.devices[client].collect()
        assert content is not None
        return decode(content)

    def grant(self, clients: list[int] | None = None) -> dict[int, Envelope]:
        """Open an exchange and let devices see its samples; the messages that they would send."""
        grants = self.coordinator.open(clients)
        for client, content in grants.items():
            self.devices[client].receive(content)
        return {client: self.see(client) for client in grants}

    def see(self, client: int) -> Envelope:
        first, stop = self.coordinator.fleet.schedule.span(self.coordinator.exchange)
        for step in range(first, stop):
            answer = self.devices[client].predict(self.stream.x[client, step])
            self.devices[client].feedback(answer.id, float(self.stream.y[client, step]))
        return self.envelope(client)

    def parameters(self) -> list[dict[str, list[float]]]:
        return [{name: tensor.flatten().tolist() for name, tensor in each.items()} for each in self.coordinator.tensors]

    def close(self) -> None:
        for device in self.devices:
            device.close()
