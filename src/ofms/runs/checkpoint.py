"""Checkpoints of a run, from which it resumes bit by bit as if it had not stopped.

A checkpoint is `checkpoint/N.safetensors` (arrays and parameters after N rounds) and `checkpoint/latest.json`, which
names it and is replaced last: a reader finds a complete checkpoint or none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import safetensors
import safetensors.numpy

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.core.version import __version__
from ofms.storage.files import require_writable, write_whole

FOLDER, LATEST = "checkpoint", "latest.json"
# Checkpoints take at most this share of a run's time.
_MOST_TIME = 0.02


class Latest(msgspec.Struct, kw_only=True, frozen=True):
    """Index of the newest checkpoint."""

    format: Literal["ofms-checkpoint/1"] = "ofms-checkpoint/1"
    version: str
    rounds: int
    exchange: int
    revision: str
    stream: str
    values: dict[str, Any]
    file: str


class Checkpoints:
    """Writes checkpoints into a run's folder, at intervals that bound their cost.

    Parameters
    ----------
    every
        Seconds between two checkpoints; more where writing one takes longer than 2 % of that.
    """

    def __init__(self, run: Path, every: float) -> None:
        self.folder, self.every = run / FOLDER, every
        self._last = time.perf_counter()
        self._cost = 0.0

    @property
    def due(self) -> bool:
        return time.perf_counter() - self._last >= max(self.every, self._cost / _MOST_TIME)

    def write(self, latest: Latest, arrays: Mapping[str, AnyArray]) -> None:
        """Replace the newest checkpoint."""
        began = time.perf_counter()
        require_writable(self.folder)
        write_whole(self.folder / latest.file, safetensors.numpy.save(dict(arrays)))
        write_whole(self.folder / LATEST, msgspec.json.format(msgspec.json.encode(latest), indent=1) + b"\n")
        for path in self.folder.glob("*.safetensors"):
            if path.name != latest.file:
                path.unlink()
        self._last = time.perf_counter()
        self._cost = self._last - began


def read_checkpoint(run: Path) -> tuple[Latest, dict[str, AnyArray]] | None:
    """The newest checkpoint of a run; None where there is none yet."""
    path = run / FOLDER / LATEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        latest = msgspec.json.decode(content, type=Latest)
        if latest.version != __version__:
            raise InvalidInput(
                "run", run, f"written by ofms {latest.version}, but this is {__version__}; start it again"
            )
        return latest, safetensors.numpy.load((run / FOLDER / latest.file).read_bytes())
    except (msgspec.DecodeError, safetensors.SafetensorError, OSError) as error:
        raise InvalidInput("run", run, f"its checkpoint is damaged ({error}); start it again") from None
