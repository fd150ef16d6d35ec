"""Changes of a running fleet as an operator asks for them: devices and models by name, budgets in any unit."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
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

_KEPT = re.compile(r"\.[0-9a-f]{16}")


class Requested(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The changes of a command: models to add, retire and roll back, budgets by device, the server's configuration.

    `kept` are the folders of `keep_model` by the names of models to add; commands of earlier versions have none.
    """

    add: list[str] = []
    kept: dict[str, str] = {}
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


def keep_model(folder: Path, task: Any, model: Model) -> str:
    """Write a model that is to be added into the deployment's folder, beside all others; the name of its own folder."""
    name = f".{secrets.token_hex(8)}"
    Dictionary(task, (model,)).write(folder / ADDED / name)
    return name


def discard_models(folder: Path, kept: Mapping[str, str]) -> None:
    """Remove the folders of models whose command was not given or is not possible."""
    for name in kept.values():
        shutil.rmtree(_kept_path(folder, name), ignore_errors=True)


def take_models(folder: Path, kept: Mapping[str, str], in_use: Collection[str]) -> None:
    """Move the models of a command to where events find them, unless an event refers to a model of that name."""
    for model, name in kept.items():
        path, own = _kept_path(folder, name), folder / ADDED / model
        # It was moved if the server was killed before it wrote the event.
        if model not in in_use and path.is_dir():
            # Left by a command that was not possible.
            shutil.rmtree(own, ignore_errors=True)
            path.rename(own)


def _kept_path(folder: Path, name: str) -> Path:
    if not _KEPT.fullmatch(name):
        raise InvalidInput("kept", name, "it is not the folder of a model to add")
    return folder / ADDED / name
