"""The server's checkpoint: the coordinator's state, its models, and the records of its history.

state/checkpoint.safetensors    everything but the models' tensors
state/models/K-V.safetensors    model K in version V: the current one, and those that a rollback may need
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.files import STATE
from ofms.coordinator.statistics import ClosedExchange, ModelUse
from ofms.coordinator.stragglers import Stragglers
from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.core.messages import Requests
from ofms.core.states import flatten, unflatten
from ofms.storage.checksums import checksum, require_checksum, with_checksum, without_checksum
from ofms.storage.envelope import Envelope, decode, encode
from ofms.storage.files import write_whole
from ofms.storage.tensors import encode_tensors
from ofms.storage.typed import from_values

_CHECKPOINT, MODELS = "checkpoint.safetensors", "models"


class Counts(msgspec.Struct):
    """Traffic and attendance of a device."""

    bytes_down: int = 0
    bytes_up: int = 0
    held_bytes: int = 0
    exchanges: int = 0
    last_exchange: int = -1
    # Without an answer in time; and those of them that were answered late.
    missed: int = 0
    late: int = 0
    refused: int = 0
    # Updates far longer than the others of their model; earlier checkpoints do not have it.
    outliers: int = 0
    # Labels whose predictions the device scored, and the sum of the scores: of all reports, and of the last one.
    samples: int = 0
    score: float = 0.0
    last_samples: int = 0
    last_score: float = 0.0


class Moment(msgspec.Struct):
    """Model versions before an exchange."""

    exchange: int
    versions: list[int]


class Records(msgspec.Struct):
    """Counts per device, version history, rejections and recent exchanges, stored beside the coordinator's state."""

    counts: list[Counts]
    history: list[Moment]
    refusals: list[str]
    # Earlier checkpoints do not have these.
    recent: list[ClosedExchange] = []
    use: ModelUse = msgspec.field(default_factory=ModelUse)
    last_command: str = ""


class Beginning(msgspec.Struct):
    """The devices with which a deployment began, and its events since."""

    budgets: list[int]
    members: list[int]
    events: list[Event] = []


class Checkpoint:
    """The files of a deployment's checkpoint.

    Attributes
    ----------
    identity
        Values that must not change during a deployment, except by events.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._models = folder / STATE / _CHECKPOINT, folder / STATE / MODELS
        self.identity: list[Any] = []
        # Files known to be complete; others may be left over from a server that was killed.
        self._written: set[tuple[int, int]] = set()
        # Of the models' files, by name.
        self._checksums: dict[str, str] = {}

    def beginning(self) -> Beginning | None:
        """How the deployment began; None if it begins now."""
        if not self.path.exists():
            return None
        with self._readable():
            values = decode(without_checksum(self.path.read_bytes())).values
            # Of an earlier version, without events: all devices are members.
            known = {"members": list(range(len(values["budgets"]))), "events": []} | dict(values)
            names = Beginning.__struct_fields__
            found = from_values({name: known[name] for name in names}, Beginning, str_keys=True)
            if not set(found.members) <= set(range(len(found.budgets))) or min(found.budgets, default=0) < 0:
                raise ValueError("devices with which it did not begin")
            return found

    def write(self, coordinator: Coordinator, records: Records, beginning: Beginning) -> None:
        """Write models first, then the checkpoint that refers to them; then remove unreferenced models."""
        for model, version in enumerate(coordinator.version.tolist()):
            if version and (model, version) not in self._written:
                content = coordinator.encoded_model(model)
                write_whole(self._model_path(model, version), content)
                self._written.add((model, version))
                self._checksums[_key(model, version)] = checksum(content)
        arrays, state_values = flatten(coordinator.state, "state.")
        arrays |= coordinator.momentum.to_arrays("momentum.")
        for client, request in coordinator.requests.items():
            arrays |= {f"request.{client}.{name}": array for name, array in request.to_arrays().items() if array.ndim}
        late, late_arrays = coordinator.stragglers.write()
        arrays |= late_arrays
        values = {
            "identity": self.identity,
            "budgets": beginning.budgets,
            "members": beginning.members,
            "events": msgspec.to_builtins(beginning.events, str_keys=True),
            "deployment": coordinator.deployment,
            "exchange": coordinator.exchange,
            "frozen": coordinator.frozen,
            "state": state_values,
            "requests": sorted(coordinator.requests),
            **late,
        } | msgspec.to_builtins(records)
        kept = _referenced(coordinator, records)
        names = {_key(*each) for each in kept}
        self._checksums = {name: each for name, each in self._checksums.items() if name in names}
        values["checksums"] = self._checksums
        write_whole(self.path, with_checksum(encode(Envelope("checkpoint", values, arrays))))
        self._written &= kept
        for path in self._models.glob("*.safetensors"):
            if path.stem not in names:
                path.unlink()

    def read(self, coordinator: Coordinator) -> Records | None:
        """Restore a coordinator and the records; None if there is no checkpoint yet."""
        if not self.path.exists():
            return None
        with self._readable():
            return self._read(coordinator)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        # Types, too: its values may be others than those that were written.
        except (AttributeError, LookupError, TypeError, ValueError, OSError, msgspec.ValidationError) as error:
            if isinstance(error, InvalidInput) and error.field == "checkpoint":
                raise
            remedy = f"it cannot be read ({error}); move `state` away to start over"
            raise InvalidInput("checkpoint", self.path, remedy) from None

    def model(self, coordinator: Coordinator, model: int, version: int) -> bytes:
        """The encoded tensors of a version of a model; version 0 is the dictionary's."""
        if version == 0:
            return encode_tensors(coordinator.dictionary.models[model].tensors)
        path = self._model_path(model, version)
        content = path.read_bytes()
        try:
            require_checksum(content, self._checksums.get(_key(model, version)))
        except ValueError as error:
            remedy = f"model {coordinator.dictionary.models[model].name} cannot be read ({error})"
            raise InvalidInput("checkpoint", path, f"{remedy}; move `state` away to start over") from None
        return content

    def _read(self, coordinator: Coordinator) -> Records:
        envelope = decode(without_checksum(self.path.read_bytes()))
        values: Mapping[str, Any] = envelope.values
        if values["identity"] != self.identity:
            remedy = "it belongs to another dictionary, policy, horizon or seed; restore that, or move `state` away"
            raise InvalidInput("checkpoint", self.path, remedy)
        coordinator.deployment, coordinator.exchange = str(values["deployment"]), int(values["exchange"])
        coordinator.frozen = bool(values["frozen"])
        # Earlier versions had no quarantine.
        arrays = {"state.quarantined": coordinator.state.quarantined} | dict(envelope.arrays)
        coordinator.state = unflatten(coordinator.state, arrays, dict(values["state"]), "state.")
        coordinator.momentum.load_arrays(envelope.arrays, "momentum.")
        for client in values["requests"]:
            arrays = envelope.part(f"request.{client}") | {"exchange": np.asarray(coordinator.exchange)}
            coordinator.requests[int(client)] = Requests.from_arrays(arrays)
        coordinator.stragglers = Stragglers.read(envelope, coordinator.state.policy)
        self._checksums = dict(values.get("checksums", {}))
        records = from_values({name: values[name] for name in Records.__struct_fields__ if name in values}, Records)
        for model, version in enumerate(coordinator.version.tolist()):
            if version:
                coordinator.load_model(model, self.model(coordinator, model, version))
        self._written = {each for each in _referenced(coordinator, records) if each[1]}
        return records

    def _model_path(self, model: int, version: int) -> Path:
        return self._models / f"{_key(model, version)}.safetensors"


def _key(model: int, version: int) -> str:
    return f"{model}-{version}"


def _referenced(coordinator: Coordinator, records: Records) -> set[tuple[int, int]]:
    """Versions of models that are current or that a rollback may need."""
    kept = {(model, version) for moment in records.history for model, version in enumerate(moment.versions)}
    return kept | set(enumerate(coordinator.version.tolist()))
