"""Persists the coordinator: checkpoints, history, status, event log.

state/checkpoint.safetensors    everything but the models' tensors
state/models/K-V.safetensors    model K in version V: the current one, and those that a rollback may want
status.json                     for people and `ofms deploy status`
events.log                      a line for everything that happened
commands/                       freeze, thaw and rollback, until they are carried out
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
from safetensors import SafetensorError

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.events import tell
from ofms.coordinator.files import COMMANDS, EVENTS, STATE, STATUS
from ofms.core.errors import InvalidInput
from ofms.core.messages import Requests
from ofms.core.states import flatten, unflatten
from ofms.storage.envelope import Envelope, decode, encode
from ofms.storage.files import require_writable, write_whole
from ofms.storage.locks import FolderLock

_CHECKPOINT = "checkpoint.safetensors"
_REFUSALS_SHOWN = 100


class Counts(msgspec.Struct):
    """What a device's messages came to."""

    bytes_down: int = 0
    bytes_up: int = 0
    held_bytes: int = 0
    exchanges: int = 0
    last_exchange: int = -1
    missed: int = 0
    refused: int = 0


class Moment(msgspec.Struct):
    """The dictionary as it was when some exchange was to open."""

    exchange: int
    versions: list[int]


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody asked the server to do."""

    do: str
    to: int | None = None


class PersistentCoordinator:
    """The server of a deployment; one at a time, but for those that only look."""

    def __init__(self, deployment: Deployment, *, look_only: bool = False) -> None:
        self.deployment, self.folder = deployment, deployment.folder
        require_writable(self.folder / STATE / "models")
        self._lock = None if look_only else FolderLock(self.folder / STATE)
        try:
            self.coordinator = deployment.coordinator()
            self.counts = [Counts() for _ in deployment.roster.devices]
            self.nodes: dict[int, int] = {}
            self.refusals: list[str] = []
            self.history = [Moment(0, self.coordinator.version.tolist())]
            # Files that are known to hold what their names say; others were left by a server that was killed.
            self._written: set[tuple[int, int]] = set()
            self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def name(self, client: int) -> str:
        """How a device is called in the log."""
        node = self.nodes.get(client)
        name = self.deployment.roster.devices[client].name
        return name if node is None else f"{name} (node {node})"

    def tell(self, line: str) -> None:
        """Write a line to the log."""
        tell(self.folder / EVENTS, line)

    def refuse(self, client: int, reason: object) -> None:
        """Count and tell that something of a device was not believed."""
        self.counts[client].refused += 1
        line = f"exchange {self.coordinator.exchange}: {self.name(client)}: {reason}"
        self.refusals = [*self.refusals, line][-_REFUSALS_SHOWN:]
        self.tell(line)

    # The exchange.

    def count(self, client: int, *, down: int = 0, up: int = 0) -> None:
        """Count the bytes of a message."""
        self.counts[client].bytes_down += down
        self.counts[client].bytes_up += up

    def welcome(self, client: int) -> Envelope:
        return decode(self.coordinator.welcome(client))

    def open(self, clients: set[int]) -> dict[int, Envelope]:
        """Open the coming exchange for devices that are there; their grants."""
        return {client: decode(content) for client, content in self.coordinator.open(clients).items()}

    def receive(self, client: int, letter: Envelope) -> None:
        """Take a letter from a device, as far as it can be believed."""
        try:
            for reason in self.coordinator.receive(client, letter):
                self.refuse(client, reason)
        except InvalidInput as error:
            self.refuse(client, f"letter refused: {error}")
            return
        self.counts[client].held_bytes = int(letter.values["held_bytes"])

    def revoke(self, client: int) -> None:
        """Have nothing to do with a device any more, the exchange under way included."""
        self.deployment.roster.devices[client].revoked = True
        self.coordinator.forget(client)
        self.tell(f"{self.name(client)} is revoked")

    def close_exchange(self) -> None:
        """Close the exchange, and write down what it came to."""
        opened, number = self.coordinator.opened, self.coordinator.exchange
        if opened is None:
            raise InvalidInput("exchange", number, "it is not open")
        for client in opened.grants:
            counts = self.counts[client]
            counts.exchanges += 1
            if client in opened.answers:
                counts.last_exchange = number
            else:
                counts.missed += 1
        updates = sum(len(answer.updates) for answer in opened.answers.values())
        for model in self.coordinator.close():
            name = self.coordinator.fleet.catalogue.names[model]
            self.tell(f"exchange {number}: {name} stays as it is: its updates together are not finite")
        missed = sorted(opened.grants.keys() - opened.answers.keys())
        line = f"exchange {number}: {len(opened.answers)} of {len(opened.grants)} devices, {updates} updates"
        self.tell(line + (f"; not in time: {', '.join(map(self.name, missed))}" if missed else ""))
        self.history.append(Moment(self.coordinator.exchange, self.coordinator.version.tolist()))
        # The dictionary that it began with stays.
        self.history = self.history[:1] + self.history[1:][-self.deployment.config.keep :]
        self.save()

    def run_commands(self) -> None:
        """Carry out what was asked for since the last exchange."""
        for path in sorted((self.folder / COMMANDS).glob("*.json")):
            try:
                self._carry_out(msgspec.json.decode(path.read_bytes(), type=Command))
                self.save()
            except (InvalidInput, msgspec.DecodeError) as error:
                self.tell(f"command {path.name} not carried out: {error}")
            path.unlink(missing_ok=True)

    def _carry_out(self, command: Command) -> None:
        if command.do in ("freeze", "thaw"):
            self.coordinator.frozen = command.do == "freeze"
            now = "is frozen: models are selected, not fine-tuned" if self.coordinator.frozen else "is fine-tuned again"
            self.tell(f"exchange {self.coordinator.exchange}: the dictionary {now}")
        elif command.do == "rollback":
            moment = next((each for each in self.history if each.exchange == command.to), None)
            if moment is None:
                raise InvalidInput("rollback", command.to, f"there are {[each.exchange for each in self.history]}")
            changed = [
                model
                for model, (then, now) in enumerate(
                    zip(moment.versions, self.coordinator.version.tolist(), strict=True)
                )
                if then != now
            ]
            self.coordinator.roll_back({model: self._model(model, moment.versions[model]) for model in changed})
            back = f"the dictionary is back where it was before exchange {command.to}"
            self.tell(f"exchange {self.coordinator.exchange}: {back}; {len(changed)} models changed")
            self.history[-1] = Moment(self.coordinator.exchange, self.coordinator.version.tolist())
        else:
            raise InvalidInput("command", command.do, "use freeze, thaw or rollback")

    # What is kept.

    def save(self) -> None:
        """Write the checkpoint: models first, then what refers to them, then away with what nothing refers to."""
        coordinator = self.coordinator
        for model, version in enumerate(coordinator.version.tolist()):
            if version and (model, version) not in self._written:
                write_whole(self._model_path(model, version), safetensors.torch.save(coordinator.tensors[model]))
                self._written.add((model, version))
        arrays, state_values = flatten(coordinator.state, "state.")
        for client, request in coordinator.requests.items():
            arrays |= {f"request.{client}.{name}": array for name, array in request.to_arrays().items() if array.ndim}
        values = {
            "identity": self._identity(),
            "budgets": coordinator.fleet.budgets.tolist(),
            "deployment": coordinator.deployment,
            "exchange": coordinator.exchange,
            "frozen": coordinator.frozen,
            "state": state_values,
            "requests": sorted(coordinator.requests),
            "counts": self.counts,
            "history": self.history,
            "refusals": self.refusals,
        }
        write_whole(self.folder / STATE / _CHECKPOINT, encode(Envelope("checkpoint", values, arrays)))
        kept = {(model, version) for moment in self.history for model, version in enumerate(moment.versions)}
        kept |= set(enumerate(coordinator.version.tolist()))
        self._written &= kept
        names = {self._model_path(*each).name for each in kept}
        for path in (self.folder / STATE / "models").glob("*.safetensors"):
            if path.name not in names:
                path.unlink()
        self.write_status()

    def write_status(self) -> None:
        """What `ofms deploy status` shows."""
        coordinator = self.coordinator
        devices = [
            {"name": device.name, "client": client, "node": self.nodes.get(client), "revoked": device.revoked}
            | {"budget": int(coordinator.fleet.budgets[client])}
            | msgspec.to_builtins(self.counts[client])
            for client, device in enumerate(self.deployment.roster.devices)
        ]
        status = {
            "deployment": coordinator.deployment,
            "revision": coordinator.fleet.catalogue.revision,
            "policy": coordinator.name,
            "exchange": coordinator.exchange,
            "exchanges": coordinator.fleet.schedule.exchanges,
            "finished": coordinator.finished,
            "frozen": coordinator.frozen,
            "bytes_down": sum(counts.bytes_down for counts in self.counts),
            "bytes_up": sum(counts.bytes_up for counts in self.counts),
            "versions": coordinator.version.tolist(),
            "history": [moment.exchange for moment in self.history],
            "devices": devices,
            "refusals": self.refusals,
            "written": time.time(),
        }
        write_whole(self.folder / STATUS, msgspec.json.format(msgspec.json.encode(status), indent=2))

    def write_dictionary(self, folder: Path) -> None:
        """Write the dictionary as it is now, for use elsewhere."""
        models = [
            replace(model, tensors=dict(tensors))
            for model, tensors in zip(self.coordinator.dictionary.models, self.coordinator.tensors, strict=True)
        ]
        replace(self.coordinator.dictionary, models=tuple(models)).write(folder)

    def _read(self) -> None:
        path, coordinator = self.folder / STATE / _CHECKPOINT, self.coordinator
        if not path.exists():
            return
        try:
            letter = decode(path.read_bytes())
            values: Mapping[str, Any] = letter.values
            if values["identity"] != self._identity():
                remedy = "it is of another dictionary, policy, horizon or seed; put that back, or move `state` away"
                raise InvalidInput("checkpoint", path, remedy)
            budgets = list(values["budgets"])
            if coordinator.fleet.budgets.tolist()[: len(budgets)] != budgets:
                remedy = "a device's budget is another now; put it back, or revoke the device and add it by a new name"
                raise InvalidInput("checkpoint", path, remedy)
            coordinator.deployment, coordinator.exchange = str(values["deployment"]), int(values["exchange"])
            coordinator.frozen = bool(values["frozen"])
            kept = dict(values["state"])
            coordinator.state = unflatten(coordinator.state, dict(letter.arrays), kept, "state.")
            for client in values["requests"]:
                arrays = letter.part(f"request.{client}") | {"exchange": np.asarray(coordinator.exchange)}
                coordinator.requests[int(client)] = Requests.from_arrays(arrays)
            for place, counts in enumerate(msgspec.convert(values["counts"], list[Counts])):
                self.counts[place] = counts
            self.history = msgspec.convert(values["history"], list[Moment])
            self.refusals = list(values["refusals"])
            for model, version in enumerate(coordinator.version.tolist()):
                coordinator.tensors[model] = self._model(model, version)
            self._written = {
                (model, version) for moment in self.history for model, version in enumerate(moment.versions) if version
            }
            self._written |= {(model, version) for model, version in enumerate(coordinator.version.tolist()) if version}
        except (KeyError, ValueError, IndexError, OSError, msgspec.ValidationError, SafetensorError) as error:
            if isinstance(error, InvalidInput) and error.field == "checkpoint":
                raise
            raise InvalidInput(
                "checkpoint", path, f"it is damaged ({error}); move `state` away to begin anew"
            ) from None

    def _identity(self) -> list[Any]:
        """What may not change while a deployment goes on."""
        config, coordinator = self.deployment.config, self.coordinator
        settings = msgspec.to_builtins(config.settings)
        return [
            coordinator.fleet.catalogue.revision,
            config.policy,
            settings,
            config.seed,
            config.rounds,
            config.interval,
        ]

    def _model(self, model: int, version: int) -> dict[str, Any]:
        if version == 0:
            return dict(self.coordinator.dictionary.models[model].tensors)
        return safetensors.torch.load(self._model_path(model, version).read_bytes())

    def _model_path(self, model: int, version: int) -> Path:
        return self.folder / STATE / "models" / f"{model}-{version}.safetensors"


def give_command(folder: Path, command: Command) -> None:
    """Ask the server of a deployment to do something before its next exchange."""
    require_writable(folder / COMMANDS)
    write_whole(folder / COMMANDS / f"{time.time_ns():020d}.json", msgspec.json.encode(command))
