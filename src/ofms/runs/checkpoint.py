"""Checkpoints of a run; a resumed run is bit-identical to an uninterrupted one.

A checkpoint is `checkpoint/N.safetensors` (arrays and parameters after N rounds) and `checkpoint/latest.json`, which
names it and is replaced last: a reader finds a complete checkpoint or none.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.core.version import __version__
from ofms.runs.config import RunConfig, without_nothing
from ofms.runs.folder import CONFIG, METRICS
from ofms.storage.files import require_writable, sync, write_whole
from ofms.storage.parsing import parse_json
from ofms.storage.typed import from_json

_log = logging.getLogger(__name__)
FOLDER, LATEST = "checkpoint", "latest.json"
# Checkpoints take at most this share of a run's time.
_MOST_TIME = 0.02


Share = Callable[[Callable[[], bytes]], bytes]


class Flattenable(Protocol):
    """A part of a run with state that changes between exchanges."""

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]: ...

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Inputs:
    """Fingerprints of a run's inputs: its dictionary and its stream."""

    dictionary: str
    stream: str


class Latest(msgspec.Struct, kw_only=True, frozen=True):
    """Index of the newest checkpoint."""

    format: Literal["ofms-checkpoint/2"] = "ofms-checkpoint/2"
    version: str
    rounds: int
    revision: str
    stream: str
    values: dict[str, Any]
    file: str
    config: dict[str, Any] = {}


class Checkpoints:
    """Write checkpoints into a run's folder, at intervals that bound their cost.

    Parameters
    ----------
    every
        Seconds between checkpoints; more if writing one takes longer than 2 % of that.
    parts
        The parts of the run, by name.
    config
        The fields of the run's configuration, with which it must be resumed.
    writes
        Whether this process writes them; the parts of the others are gathered by `Flattenable.flatten`.
    """

    def __init__(
        self,
        run: Path,
        every: float,
        parts: Mapping[str, Flattenable],
        inputs: Inputs,
        config: Mapping[str, Any] | None = None,
        *,
        writes: bool = True,
    ) -> None:
        self.writes = writes
        self.folder, self.every, self.parts, self.inputs = run / FOLDER, every, parts, inputs
        self.config = dict(config or {})
        self._last = time.perf_counter()
        self._cost = 0.0

    @property
    def due(self) -> bool:
        return time.perf_counter() - self._last >= max(self.every, self._cost / _MOST_TIME)

    def write(self, rounds: int, seconds: float) -> None:
        """Replace the newest checkpoint."""
        began = time.perf_counter()
        arrays: dict[str, AnyArray] = {}
        values: dict[str, Any] = {"seconds": seconds}
        for name, part in self.parts.items():
            part_arrays, part_values = part.flatten()
            arrays |= {f"{name}.{key}": np.ascontiguousarray(array) for key, array in part_arrays.items()}
            values |= {f"{name}.{key}": value for key, value in part_values.items()}
        if self.writes:
            self._replace(rounds, arrays, values)
        self._last = time.perf_counter()
        self._cost = self._last - began
        _log.debug("checkpoint after round %d in %.2f s: %s", rounds, self._cost, self.folder)

    def _replace(self, rounds: int, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        latest = Latest(
            version=__version__,
            rounds=rounds,
            revision=self.inputs.dictionary,
            stream=self.inputs.stream,
            values=values,
            file=f"{rounds}.safetensors",
            config=self.config,
        )
        require_writable(self.folder)
        # After a power failure, the metrics must not end before the checkpoint.
        sync(self.folder.parent / METRICS)
        write_whole(self.folder / latest.file, safetensors.numpy.save(arrays))
        write_whole(self.folder / LATEST, msgspec.json.format(msgspec.json.encode(latest), indent=1) + b"\n")
        for path in self.folder.glob("*.safetensors"):
            if path.name != latest.file:
                path.unlink()

    def remove(self) -> None:
        """Remove all checkpoints: a finished run needs none."""
        if self.writes:
            shutil.rmtree(self.folder, ignore_errors=True)


def restore(
    run: Path, parts: Mapping[str, Flattenable], inputs: Inputs, share: Share = lambda read: read()
) -> tuple[int, float]:
    """Restore a run from its last checkpoint; return its rounds and seconds so far, (0, 0) without a checkpoint.

    `share` calls what it is given in the process that has the run's folder, and tells the others.
    """
    content = share(lambda: _checkpoint_bytes(run))
    if not content:
        return 0, 0.0
    length = int.from_bytes(content[:8], "little")
    latest, arrays = parse_json(content[8 : 8 + length], Latest), safetensors.numpy.load(content[8 + length :])
    for name, then, now in (
        ("dictionary", latest.revision, inputs.dictionary),
        ("stream", latest.stream, inputs.stream),
    ):
        if then != now:
            raise InvalidInput("resume", run, f"it was run with another {name}; give the same one")
    try:
        for name, part in parts.items():
            prefix = f"{name}."
            part.unflatten(
                {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)},
                {key.removeprefix(prefix): value for key, value in latest.values.items() if key.startswith(prefix)},
            )
        return latest.rounds, float(latest.values["seconds"])
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput("resume", run, f"its checkpoint does not match the run ({error}); start a new run") from None


def _checkpoint_bytes(run: Path) -> bytes:
    """The newest checkpoint of a run: the length of its index, the index, the arrays; nothing if there is none yet."""
    found = read_checkpoint(run)
    if found is None:
        return b""
    index = msgspec.json.encode(found[0])
    return len(index).to_bytes(8, "little") + index + safetensors.numpy.save(found[1])


def comparable(config: RunConfig) -> dict[str, Any]:
    """The fields of a configuration by path, without those that only say where files are: their content is compared."""
    values = without_nothing(msgspec.to_builtins(config))
    nested = {key: value for key, value in values.items() if isinstance(value, dict) and key != "trust"}
    flat = {key: value for key, value in values.items() if not isinstance(value, dict) and key != "models"}
    flat |= {f"{key}.{name}": value for key, table in nested.items() for name, value in table.items()}
    # What a run leaves behind may change when it is resumed.
    for key in ("stream.file", "save_models"):
        flat.pop(key, None)
    return flat


def require_same_config(run: Path, config: RunConfig) -> None:
    """Reject a configuration that was edited after the run's last checkpoint, by field."""
    try:
        latest = parse_json((run / FOLDER / LATEST).read_bytes(), dict[str, Any])
    except (OSError, ValueError):
        return  # No checkpoint, or one that cannot be read, as `restore` says.
    then = latest.get("config") or {}
    if not isinstance(then, dict):
        return  # As `restore` says.
    # Through JSON, as the other: lists for tuples.
    now = from_json(msgspec.json.encode(comparable(config)), dict[str, Any])
    for field in sorted(now.keys() | then.keys()) if then else ():
        if now.get(field) != then.get(field):
            remedy = f"the run began with {then.get(field)}; set it back in {run / CONFIG}, or start a new run"
            raise InvalidInput(field, now.get(field), remedy)


def read_checkpoint(run: Path) -> tuple[Latest, dict[str, AnyArray]] | None:
    """The newest checkpoint of a run; None if there is none yet."""
    path = run / FOLDER / LATEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        version = parse_json(content, dict[str, Any]).get("version")
        if version != __version__:
            raise InvalidInput("run", run, f"written by ofms {version}, this is {__version__}; start a new run")
        latest = parse_json(content, Latest)
        try:
            return latest, safetensors.numpy.load((run / FOLDER / latest.file).read_bytes())
        except FileNotFoundError:
            # The run still runs, and has replaced it meanwhile.
            if path.read_bytes() == content:
                raise
            return read_checkpoint(run)
    except (ValueError, KeyError, safetensors.SafetensorError, OSError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("run", run, f"its checkpoint is damaged ({error}); start a new run") from None
