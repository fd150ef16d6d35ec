"""A deployment whose devices' messages are passed directly, and which changes: devices and models come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ofms.coordinator.deployment import Deployment, ServerConfig, write_config
from ofms.coordinator.keys import add_device, make_deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.roster import read_roster
from ofms.core.typing import Floats
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary
from ofms.storage.envelope import decode
from tests.devices import label_samples, problem
from tests.policy_settings import SETTINGS
from tests.problems import regression_problem

ADDRESS = "127.0.0.1:9092"


class ChangingFleet:
    """Three devices and five of six models at first; `seen` has what devices hold and predict with, by exchange."""

    def __init__(self, folder: Path, policy: str, **given: Any) -> None:
        self.whole, _ = problem()
        _, self.stream = regression_problem(4, 20)
        self.dictionary = Dictionary("regression", self.whole.models[:5])
        self.further = folder / "further"
        Dictionary("regression", self.whole.models[5:]).write(self.further)
        self.folder = folder / "fleet"
        self.dictionary.write(self.folder / "models")
        make_deployment(self.folder, ADDRESS, self.folder / "models", rounds=20)
        config: dict[str, Any] = {"rounds": 20, "settings": SETTINGS[policy]} | given
        write_config(
            self.folder,
            ServerConfig(address=ADDRESS, models="models", policy=policy, interval=2, seed=5, **config),
        )
        largest = int(self.dictionary.catalogue().storage.max())
        self.budgets = [(2 + client % 3) * largest for client in range(4)]
        for client in range(3):
            add_device(self.folder, f"device-{client}", f"{self.budgets[client]}B", ADDRESS)
        self.persistence = PersistentCoordinator(Deployment(self.folder))
        self.devices = [
            Device(folder / f"store-{client}", budget=budget, mail=False) for client, budget in enumerate(self.budgets)
        ]
        self.away: set[int] = set()
        self.seen: list[dict[int, tuple[list[int], Floats]]] = []
        self._joined = dict.fromkeys(range(3), 0)

    def join(self, client: int) -> None:
        """Add a device to the roster, as `ofms deploy keys` does while the server runs."""
        add_device(self.folder, f"device-{client}", f"{self.budgets[client]}B", ADDRESS)

    def restart(self) -> None:
        """A new server from the checkpoint; the devices keep running."""
        self.persistence.close()
        self.persistence = PersistentCoordinator(Deployment(self.folder))

    def run(self, exchanges: int, *, kill: bool = False) -> None:
        """Run exchanges; with `kill`, the server is replaced after its commands, and again with an exchange open."""
        for _ in range(exchanges):
            self._exchange(kill)

    def close(self) -> None:
        self.persistence.close()
        for device in self.devices:
            device.close()

    def _exchange(self, kill: bool) -> None:
        roster = read_roster(self.folder).devices
        own = self.persistence.deployment.roster.devices
        own[:] = roster
        self.persistence.run_commands()
        if kill:
            self.restart()
        self._request()
        grants = self.persistence.coordinator.open()
        if kill:
            # The exchange that was open is opened again, for the same requests.
            self.restart()
            self._request()
            assert self.persistence.coordinator.open() == grants
        here: dict[int, tuple[list[int], Floats]] = {}
        steps = range(*self.persistence.coordinator.fleet.schedule.span(self.persistence.coordinator.exchange))
        for client, content in grants.items():
            device = self.devices[client]
            device.receive(content)
            memory = device._state.memory
            here[client] = (device.holding, memory.plans[memory.exchange].prediction_weights[0])
            label_samples(device, self.stream.x[client], self.stream.y[client], steps)
            answer = device.collect()
            assert answer is not None
            self.persistence.receive(client, decode(answer))
        self.seen.append(here)
        self.persistence.close_exchange()

    def _request(self) -> None:
        """Welcome devices that have no request for the next exchange."""
        coordinator = self.persistence.coordinator
        for client in coordinator.setup.members:
            if client not in coordinator.requests and client not in self.away:
                self.devices[client].receive(coordinator.welcome(client))
                answer = self.devices[client].collect()
                assert answer is not None
                self.persistence.receive(client, decode(answer))
