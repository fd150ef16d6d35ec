"""Events of a deployment: applied, logged and written with the checkpoint, and replayed when a server starts again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ofms.coordinator.checkpoint import Beginning, Counts, Moment, Records
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import STATE
from ofms.coordinator.roster import DeviceEntry, write_roster
from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.runs.units import parse_budgets


def waiting_devices(coordinator: Coordinator, devices: Sequence[DeviceEntry]) -> list[int]:
    """The devices of a roster that are not in the fleet yet: each is tried, whether those before it can join or not."""
    known = {*coordinator.setup.members, *coordinator.setup.left}
    return [client for client, device in enumerate(devices) if client not in known and not device.revoked]


def join_of(coordinator: Coordinator, client: int, budget: str) -> Event:
    """The event with which a device joins, before the coordinator's next exchange."""
    largest = int(coordinator.fleet.catalogue.storage.max())
    found = int(parse_budgets(budget, largest=largest, clients=1)[0])
    return Event(exchange=coordinator.exchange, join={client: found})


class PersistentEvents(ABC):
    """The part of a persistent coordinator that changes its fleet."""

    deployment: Deployment
    folder: Path
    coordinator: Coordinator
    records: Records
    beginning: Beginning
    _complaints: set[str]
    declined: dict[int, str]

    @abstractmethod
    def log_event(self, line: str) -> None:
        """Append a line to the event log."""

    @abstractmethod
    def save(self) -> None:
        """Write checkpoint and status."""

    def apply(self, event: Event) -> None:
        """Change the fleet, log it, and write the checkpoint; rejected as a whole if it is impossible."""
        coordinator = self.coordinator
        models = self.deployment.added_models(event.add, coordinator.dictionary.task)
        coordinator.apply(event, models, self.earlier_models(event))
        if event.rollback:
            self.records.history[-1] = Moment(coordinator.exchange, coordinator.version.tolist())
        self.beginning.events.append(event)
        names = {client: device.name for client, device in enumerate(self.deployment.roster.devices)}
        self.log_event(f"exchange {event.exchange}: {event.describe(names)}")
        self.save()

    @abstractmethod
    def earlier_models(self, event: Event) -> dict[int, bytes]:
        """The encoded models that an event goes back to; rejected if they are not kept."""

    def follow_roster(self) -> None:
        """Let new devices of the roster join, and revoked ones leave."""
        coordinator, devices = self.coordinator, self.deployment.roster.devices
        if len(self.records.counts) < len(devices):
            write_roster(self.folder / STATE, self.deployment.roster)
        self.records.counts += [Counts() for _ in devices[len(self.records.counts) :]]
        for client in waiting_devices(coordinator, devices):
            self._try_apply(join_of(coordinator, client, devices[client].budget))
        for client in coordinator.setup.members:
            if client < len(devices) and devices[client].revoked:
                self._try_apply(Event(exchange=coordinator.exchange, leave=(client,)))

    @property
    def deadline(self) -> float:
        """Seconds for a device to process the samples of an exchange."""
        given = [event.deadline for event in self.beginning.events if event.deadline is not None]
        return given[-1] if given else self.deployment.config.deadline

    @property
    def quorum(self) -> float:
        """The share of its devices whose answers close an exchange."""
        given = [event.quorum for event in self.beginning.events if event.quorum is not None]
        return given[-1] if given else self.deployment.config.quorum

    def log_overridden(self) -> None:
        """Log each value of `server.toml` that events replaced: the file says how the deployment began."""
        coordinator, config, events = self.coordinator, self.deployment.config, self.beginning.events
        in_force: dict[str, Any] = {"policy": coordinator.name, "settings": dict(coordinator.settings)}
        in_force |= {name: getattr(self, name) for name in ("deadline", "quorum")}
        in_force |= {"bandwidth": coordinator.setup.bandwidth, "interval": coordinator.fleet.schedule.interval}
        in_force |= {"staleness": coordinator.staleness, "aggregation": coordinator.setup.aggregation}
        for name, value in in_force.items():
            changed = any(getattr(event, name) is not None for event in events)
            if name == "settings":
                changed |= any(event.policy is not None for event in events)
            if changed and value != getattr(config, name):
                shown = f"{name} = {getattr(config, name)}"
                self.log_event(f"server.toml has {shown}, but a change of the running fleet is in force: {value}")

    def _try_apply(self, event: Event) -> None:
        try:
            self.apply(event)
        except InvalidInput as error:
            names = {client: device.name for client, device in enumerate(self.deployment.roster.devices)}
            line = f"not possible: {event.describe(names)}: {error}"
            if line not in self._complaints:
                self._complaints.add(line)
                self.log_event(line)

    def _replay(self) -> None:
        """Repeat the events up to the checkpoint, whose states follow."""
        task = self.coordinator.dictionary.task
        for event in self.beginning.events:
            self.coordinator.apply(event, self.deployment.added_models(event.add, task))
