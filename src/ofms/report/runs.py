"""Runs as they lie on disk: read for a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Floats
from ofms.runs.config import RunConfig, load_run
from ofms.runs.folder import CLIENTS, CONFIG, HISTORY, METRICS, SUMMARY
from ofms.storage.archives import read_npz


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run: its configuration, its figures, round by round and client by client."""

    name: str
    config: RunConfig
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    clients: dict[str, AnyArray]
    history: dict[str, AnyArray]

    def over_rounds(self, name: str) -> Floats:
        """[T] one figure of the lines; NaN where a line lacks it."""
        return np.array([line.get(name, np.nan) for line in self.lines], dtype=np.float64)

    @property
    def metric(self) -> str:
        return str(self.summary["metric"])


def read_run(folder: Path) -> FinishedRun:
    """A finished run from its folder, or one line that says what is wrong with it."""
    if not (folder / CONFIG).is_file():
        raise InvalidInput("run", folder, f"no run is there: {CONFIG} is missing")
    if not (folder / SUMMARY).is_file():
        raise InvalidInput("run", folder, f"it is not finished; go on with: ofms run --resume {folder}")
    config = load_run(str(folder / CONFIG))
    try:
        if config is None:
            raise ValueError(f"{CONFIG} is not a run's")
        summary = msgspec.json.decode((folder / SUMMARY).read_bytes(), type=dict[str, Any])
        lines = [
            msgspec.json.decode(line, type=dict[str, Any]) for line in (folder / METRICS).read_bytes().splitlines()
        ]
        arrays = [read_npz(folder / name) for name in (CLIENTS, HISTORY)]
        if not lines or "score" not in arrays[0]:
            raise ValueError("a part of it is empty")
    except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        raise InvalidInput("run", folder, f"it is damaged ({error}); run it again") from None
    return FinishedRun(folder.resolve().name, config, summary, lines, arrays[0], arrays[1])
