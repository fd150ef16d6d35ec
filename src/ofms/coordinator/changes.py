"""Changes of a running fleet as an operator asks for them: devices and models by name, budgets in any unit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.files import ADDED
from ofms.coordinator.roster import Roster
from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.models.dictionary import Dictionary, Model
from ofms.models.index import read_index
from ofms.models.model import read_model
from ofms.plugins import Trust
from ofms.runs.units import parse_budgets


class Requested(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The changes of a command: models to add, retire and roll back, budgets by device, the server's configuration."""

    add: list[str] = []
    retire: list[str] = []
    rollback: dict[str, int] = {}
    budget: dict[str, str] = {}
    bandwidth: str | None = None
    interval: int | None = None
    aggregation: str | None = None
    policy: str | None = None
    settings: dict[str, Any] | None = None
    deadline: float | None = None
    quorum: float | None = None
    staleness: int | None = None

    def event(self, coordinator: Coordinator, roster: Roster) -> Event:
        """The event, before the coordinator's next exchange."""
        numbers = {device.name: client for client, device in enumerate(roster.devices)}
        largest = int(coordinator.fleet.catalogue.storage.max())
        budgets: dict[int, int] = {}
        for name, budget in self.budget.items():
            if name not in numbers:
                raise InvalidInput("budget", name, f"no such device; the devices are: {', '.join(numbers)}")
            budgets[numbers[name]] = int(parse_budgets(budget, largest=largest, clients=1)[0])
        if self.deadline is not None and not self.deadline > 0:
            raise InvalidInput("deadline", self.deadline, "give a number above 0")
        if self.quorum is not None and not 0 < self.quorum <= 1:
            raise InvalidInput("quorum", self.quorum, "give a share above 0, up to 1")
        if self.staleness is not None and self.staleness < 0:
            raise InvalidInput("staleness", self.staleness, "give a number of exchanges, from 0 on")
        return Event(
            exchange=coordinator.exchange,
            add=tuple(self.add),
            retire=tuple(self.retire),
            rollback=self.rollback,
            budget=budgets,
            bandwidth=self.bandwidth,
            interval=self.interval,
            aggregation=self.aggregation,
            policy=self.policy,
            settings=self.settings,
            deadline=self.deadline,
            quorum=self.quorum,
            staleness=self.staleness,
        )


def read_models(folder: Path, trust: Trust, task: str, names: Sequence[str] = ()) -> list[Model]:
    """Models of a dictionary's folder, which may have only one; all of them, or those named."""
    index = read_index(folder)
    if index.task != task:
        raise InvalidInput("models", folder, f"its models are for {index.task}; the fleet's are for {task}")
    known = [entry.name for entry in index.models]
    for name in names:
        if name not in known:
            raise InvalidInput("model", name, f"{folder} has {', '.join(known)}")
    return [read_model(folder, entry, trust) for entry in index.models if not names or entry.name in names]


def keep_model(folder: Path, task: Any, model: Model) -> None:
    """Write a model that is added into the deployment's folder, where its server finds it."""
    own = folder / ADDED / model.name
    # Left by a command that was not executed.
    shutil.rmtree(own, ignore_errors=True)
    own.parent.mkdir(parents=True, exist_ok=True)
    Dictionary(task, (model,)).write(own)
