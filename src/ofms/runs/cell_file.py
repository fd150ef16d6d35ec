"""Cells of a reproduction on disk: one finished run as JSON, without arrays over models."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.runs.config import RunConfig
from ofms.runs.figures import config_figures, took_part
from ofms.runs.result import Result
from ofms.runs.soundness import MOST_SCORE
from ofms.storage.files import write_whole
from ofms.storage.parsing import parse_json

_START = b'{"format":"ofms-cell/'


class _DriftFigures(msgspec.Struct, kw_only=True, frozen=True):
    """Figures of a stream that drifts, with the metric over rounds."""

    changes: list[int]
    dynamic_regret: float
    recovery: float | None
    best_of_phases: float
    phase_best: list[float]
    score_over_rounds: list[float]


class _CellFile(msgspec.Struct, kw_only=True, frozen=True):
    """The JSON of a cell: `scores` and `regret` by client, regret over rounds with its 10 and 90 % quantiles.

    If clients come and go, `rounds` says how many each was in the fleet; scores of those that never were are None.
    Otherwise a figure is None if it is not finite: models of the run diverged. Cells of earlier versions have no
    `warnings`.
    """

    format: Literal["ofms-cell/1"] = "ofms-cell/1"
    config: RunConfig
    loopback: bool
    command: str
    revision: str
    metric: str
    scores: list[float | None]
    regret: list[float | None]
    best_in_hindsight: float | None
    random_model: float | None
    bound: float | None
    not_covered: str
    regret_over_rounds: list[float | None]
    regret_quantiles: list[list[float | None]]
    groups: float
    bytes_down: int
    bytes_up: int
    most_bytes_held: int
    client_seconds: float | None
    seconds: float
    version: str
    machine: str
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    rounds: list[int] | msgspec.UnsetType = msgspec.UNSET
    drift: _DriftFigures | msgspec.UnsetType = msgspec.UNSET


# Figures that have the same name in a cell and in a run's summary.
_FIGURES = (
    *("revision", "metric", "best_in_hindsight", "random_model", "bound", "groups", "bytes_down", "bytes_up"),
    *("most_bytes_held", "client_seconds"),
)
_DRIFT_FIGURES = ("changes", "dynamic_regret", "recovery", "best_of_phases", "phase_best")


def write_cell(result: Result, path: Path, *, config: RunConfig, command: str) -> None:
    """Store a run as a cell.

    Parameters
    ----------
    config
        The configuration that identifies the cell.
    command
        The command that repeats it.
    """
    rounds = result.rounds
    drift: _DriftFigures | msgspec.UnsetType = msgspec.UNSET
    if result.drifts:
        known = {name: result.figures[name] for name in _DRIFT_FIGURES}
        drift = _DriftFigures(score_over_rounds=_rounded(rounds["score"], 5), **known)
    cell = _CellFile(
        config=config,
        loopback=bool(result.config.loopback),
        command=command,
        scores=_rounded(result.score),
        regret=_rounded(result.regret()),
        not_covered=result.figures["not_covered"] or "",
        regret_over_rounds=_rounded(rounds["regret"], 5),
        regret_quantiles=[_rounded(rounds[name], 5) for name in ("regret_10", "regret_90")],
        seconds=round(result.figures["seconds"], 1),
        version=__version__,
        machine=machine(),
        warnings=list(result.figures.get("warnings", ())) or msgspec.UNSET,
        rounds=result.clients["rounds"].tolist() if "rounds" in result.clients else msgspec.UNSET,
        drift=drift,
        **{name: result.figures[name] for name in _FIGURES},
    )
    write_whole(path, msgspec.json.encode(cell) + b"\n")


def read_cell(path: Path) -> Result:
    """Read a cell; FileNotFoundError if there is none."""
    content = path.read_bytes()
    if not content.startswith(_START):
        raise InvalidInput("run", path, "it is neither a run's folder nor a cell of a reproduction; name one of these")
    try:
        cell = parse_json(content, _CellFile)
        low, high = (np.array(values, dtype=np.float64) for values in cell.regret_quantiles)
        _require_sound(cell)
        # Earlier versions wrote commands without quotes.
        command = shlex.join(shlex.split(cell.command))
    except ValueError as error:
        raise InvalidInput("cell", path, f"it is damaged ({error}); remove it and run it again") from None
    config = msgspec.structs.replace(cell.config, loopback=cell.loopback or None)
    clients = {"score": np.array(cell.scores, np.float64), "regret": np.array(cell.regret, np.float64)}
    if isinstance(cell.rounds, list):
        clients["rounds"] = np.array(cell.rounds, np.int64)
    members = took_part(clients)
    kept = {name: getattr(cell, name) for name in (*_FIGURES, "seconds", "version", "machine")}
    for name in ("best_in_hindsight", "random_model"):
        kept[name] = np.nan if kept[name] is None else kept[name]
    computed = {
        "command": command,
        "mean": float(clients["score"][members].mean()),
        "std": float(clients["score"][members].std()),
        "regret": float(clients["regret"][members].mean()),
        "not_covered": cell.not_covered or None,
    }
    regret = np.array(cell.regret_over_rounds, dtype=np.float64)
    rounds = {"round": np.arange(1, len(regret) + 1), "regret": regret, "regret_10": low, "regret_90": high}
    figures = config_figures(config) | kept | computed
    if isinstance(cell.warnings, list):
        figures["warnings"] = cell.warnings
    if isinstance(cell.drift, _DriftFigures):
        figures |= {name: getattr(cell.drift, name) for name in _DRIFT_FIGURES}
        rounds["score"] = np.array(cell.drift.score_over_rounds)
    return Result(config, figures, clients, rounds, name=config.policy)


def _require_sound(cell: _CellFile) -> None:
    """ValueError if a cell's figures are not those of a run."""
    if cell.config.rounds < 1:
        raise ValueError(f"a run of {cell.config.rounds} rounds")
    if not cell.scores or len(cell.scores) != len(cell.regret):
        raise ValueError("scores and regrets are not one for each client")
    if isinstance(cell.rounds, list) and (len(cell.rounds) != len(cell.scores) or not 0 < max(cell.rounds) < 2**63):
        raise ValueError("rounds are not one number for each client")
    if not all(abs(score) <= MOST_SCORE for score in cell.scores if score is not None):
        raise ValueError(f"scores have numbers beyond {MOST_SCORE:g}")
    if any(len(values) != len(cell.regret_over_rounds) for values in cell.regret_quantiles):
        raise ValueError("regret and its quantiles are not of the same rounds")


def content_key(made: object) -> str:
    """A short hash of everything that determines a file's content, for its name."""
    return hashlib.sha256(msgspec.json.encode(made, order="deterministic")).hexdigest()[:12]


def machine() -> str:
    """Cores, processor and Python version, in one line."""
    return f"{os.cpu_count()} cores of {_processor()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _rounded(values: Iterable[float], digits: int = 7) -> list[Any]:
    """Round to more digits than any table shows, to keep files small."""
    return [float(f"{value:.{digits}g}") for value in values]
