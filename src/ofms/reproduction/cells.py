"""Cells: one run each, kept as JSON under the key of its configuration, so that it is never run twice."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from tqdm import tqdm

from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.models.dictionary import Dictionary
from ofms.reproduction.convex import ServerCurve
from ofms.runs.config import Experiment, RunConfig, load_experiment
from ofms.runs.dictionaries import dictionary_folder, find_dictionary
from ofms.runs.folder import CONFIG, SUMMARY, unfinished_run
from ofms.runs.interrupt import RunInterrupted
from ofms.simulator.api import resolve_experiment, simulate
from ofms.simulator.result import Result
from ofms.storage.files import is_locked, require_writable, write_whole


@dataclass(frozen=True)
class Cell:
    """One run: an experiment, a policy, a seed, and what differs from the experiment's own settings."""

    experiment: str
    policy: str = "ofms-ft"
    seed: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    loopback: bool = False

    def command(self, models: str | None = None) -> str:
        """The command that runs it alone."""
        parts = ["ofms run", self.experiment, f"--policy {self.policy}", f"--seed {self.seed}"]
        for name, value in self.given.items():
            option = name in ("preset", "budget", "bandwidth", "clients", "rounds")
            parts.append(f"--{name} {value}" if option else f"--set {name}={_toml(value)}")
        parts += [f"--models {models}"] if models else []
        return " ".join([*parts, "--loopback"] if self.loopback else parts)


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """What a cell came to: by client; over rounds the mean regret and its 10 and 90 % quantiles; the mean α."""

    format: Literal["ofms-cell/1"] = "ofms-cell/1"
    config: RunConfig
    loopback: bool
    command: str
    revision: str
    metric: str
    scores: list[float]
    regret: list[float]
    best_in_hindsight: float
    random_model: float
    bound: float | None
    not_covered: str
    regret_over_rounds: list[float]
    regret_quantiles: list[list[float]]
    groups: float
    bytes_down: int
    bytes_up: int
    most_bytes_held: int
    client_seconds: float | None
    seconds: float
    version: str
    machine: str

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        """Over clients, as in the paper's tables."""
        return float(np.std(self.scores))


class CellStore:
    """Runs cells, and keeps them in a folder.

    Parameters
    ----------
    models
        The folder of a dictionary for each experiment that does not take its own pre-trained one.
    prepare
        Changes an experiment before its cells are run: a quick reproduction pre-trains less.
    run
        Whether missing cells are run; else they are left out.
    keep_runs
        Whether the folders of the runs stay beside the cells, for a report.
    """

    def __init__(
        self,
        folder: Path,
        *,
        models: Mapping[str, str] | None = None,
        prepare: Callable[[Experiment], Experiment] = lambda experiment: experiment,
        run: bool = True,
        keep_runs: bool = False,
        workers: int | None = None,
        progress: bool = True,
    ) -> None:
        self.folder, self.models, self.workers, self.progress = folder, dict(models or {}), workers, progress
        self.used: dict[str, Record] = {}
        self.curves: list[str] = []
        self.runs_missing = run
        self._prepare, self._keep_runs = prepare, keep_runs
        self._dictionaries: dict[str, tuple[Dictionary, str]] = {}

    def records(self, cells: Iterable[Cell]) -> list[Record]:
        """The records of cells, in their order; those that are missing are run, or left out."""
        # Without a dictionary there is nothing to show, and a look does not train one.
        cells = [cell for cell in cells if self.runs_missing or self.has_dictionary(cell.experiment)]
        missing = [cell for cell in cells if self.find(cell) is None] if self.runs_missing else []
        if missing:
            require_writable(self.folder)
        with tqdm(
            total=len(missing), desc="cells", unit="cell", disable=None if self.progress and missing else True
        ) as bar:
            for cell in missing:
                bar.set_postfix_str(f"{cell.experiment} {cell.policy} seed {cell.seed}")
                self._run(cell)
                bar.update()
        found = {self._path(cell).name: self.find(cell) for cell in cells}
        known = {name: record for name, record in found.items() if record is not None}
        self.used |= known
        return list(known.values())

    def computed(self, name: str, made: Mapping[str, Any], compute: Callable[[], ServerCurve]) -> ServerCurve | None:
        """A curve that is no run, kept under the key of how it is made; None where it is missing and nothing is run."""
        path = self.folder / f"{name}-{_key(made)}.json"
        if not path.exists():
            if not self.runs_missing:
                return None
            require_writable(self.folder)
            curve = compute()
            kept = {"regret": _rounded(curve.regret, 5), "bound": curve.bound}
            write_whole(path, msgspec.json.encode(kept) + b"\n")
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_KeptCurve)
        except msgspec.DecodeError as error:
            raise _damaged(path, error) from None
        self.curves.append(path.name)
        return ServerCurve(np.array(found.regret), found.bound)

    def find(self, cell: Cell) -> Record | None:
        """A cell's record, if it was run before."""
        path = self._path(cell)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(content, type=Record)
        except msgspec.DecodeError as error:
            raise _damaged(path, error) from None

    def config(self, cell: Cell) -> RunConfig:
        """The resolved configuration of a cell, with the dictionary's folder left out."""
        given = {"history": 0, "seed": cell.seed} | dict(cell.given)
        _, config = resolve_experiment(cell.experiment, policy=cell.policy, given=given)
        return msgspec.structs.replace(config, models=None)

    def has_dictionary(self, experiment: str) -> bool:
        """Whether an experiment's dictionary is there, so that nothing has to be pre-trained."""
        loaded = self._prepare(load_experiment(experiment))
        named = self.models.get(experiment, loaded.models)
        return named is not None or dictionary_folder(loaded, experiment).exists()

    def dictionary(self, experiment: str) -> tuple[Dictionary, str]:
        """An experiment's dictionary and its revision; pre-trained where it is missing."""
        if experiment not in self._dictionaries:
            loaded = self._prepare(load_experiment(experiment))
            config = msgspec.structs.replace(
                self.config(Cell(experiment)), models=self.models.get(experiment, loaded.models)
            )
            dictionary = find_dictionary(loaded, config, progress=self.progress)
            self._dictionaries[experiment] = dictionary, dictionary.revision()
        return self._dictionaries[experiment]

    def _path(self, cell: Cell) -> Path:
        # What is not said is left out, so that a field that is added later leaves old keys as they are.
        config = self.config(cell)
        made = [config.identity(), self.dictionary(cell.experiment)[1], cell.loopback]
        if config.stream is not None:
            made.append(config.stream.fingerprint())
        return self.folder / f"{Path(cell.experiment).stem}-{cell.policy}-seed{cell.seed}-{_key(made)}.json"

    def run_folder(self, cell: Cell) -> Path:
        """Where a cell's run is, while it goes on and where runs are kept."""
        return self.folder.parent / "runs" / self._path(cell).stem

    def _run(self, cell: Cell) -> None:
        if not self.config(cell).hindsight:
            raise InvalidInput("hindsight", False, "a cell reports regret; leave it on")
        dictionary, revision = self.dictionary(cell.experiment)
        folder = self.run_folder(cell)
        if is_locked(folder):
            raise InvalidInput("folder", folder, "another process runs this cell; wait for that, or stop it")
        options: dict[str, Any] = {"models": dictionary, "workers": self.workers, "progress": self.progress}
        interrupted = (folder / CONFIG).exists() and not (folder / SUMMARY).exists()
        if folder.exists() and (cell.loopback or not interrupted):
            shutil.rmtree(folder)
            interrupted = False
        try:
            result = self._go_on(folder, options) if interrupted else None
            if result is None:
                followed = {"history": 10 if self._keep_runs else 0}
                result = simulate(
                    cell.experiment,
                    policy=cell.policy,
                    loopback=cell.loopback,
                    out=folder,
                    **options,
                    **({"seed": cell.seed} | dict(cell.given) | followed),
                )
        except RunInterrupted as interruption:
            reason = str(interruption).partition(";")[0]
            again = "begins this cell again" if cell.loopback else "goes on from there"
            raise RunInterrupted(f"{cell.experiment}, {cell.policy}: {reason}; the same command {again}") from None
        label = "DIR" if cell.experiment in self.models else None
        record = _record(cell, self.config(cell), result, revision, cell.command(label))
        write_whole(self._path(cell), msgspec.json.encode(record) + b"\n")
        if not self._keep_runs:
            shutil.rmtree(folder, ignore_errors=True)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()

    def _go_on(self, folder: Path, options: dict[str, Any]) -> Result | None:
        """Go on with an interrupted run; None where what is left of it cannot be used, as of another version."""
        try:
            unfinished_run(folder)
        except InvalidInput:
            shutil.rmtree(folder)
            return None
        try:
            return simulate(resume=folder, **options)
        except InvalidInput as error:
            # Anything else, as data that are not there or a full disk, says nothing against the checkpoint.
            if error.field not in ("run", "resume"):
                raise
            shutil.rmtree(folder)
            return None


def _key(made: object) -> str:
    return hashlib.sha256(msgspec.json.encode(made, order="deterministic")).hexdigest()[:12]


class _KeptCurve(msgspec.Struct, frozen=True):
    regret: list[float]
    bound: float


def _damaged(path: Path, error: Exception) -> InvalidInput:
    return InvalidInput("cell", path, f"it is damaged ({error}); remove it to run it again")


def _record(cell: Cell, config: RunConfig, result: Result, revision: str, command: str) -> Record:
    best, random, regret = result.best_in_hindsight, result.random_model, result.regret()
    if best is None or random is None:
        raise InvalidInput("hindsight", False, "a cell reports regret; leave it on")
    seconds = result.clients.get("seconds")
    return Record(
        config=config,
        loopback=cell.loopback,
        command=command,
        revision=revision,
        metric=result.metric,
        scores=_rounded(result.score),
        regret=_rounded(regret),
        best_in_hindsight=float(best.mean()),
        random_model=float(random.mean()),
        bound=None if result.bound is None else float(result.bound.mean()),
        not_covered=result.not_covered,
        regret_over_rounds=_rounded(result.over_rounds("regret"), 5),
        regret_quantiles=[_rounded([line["regret_quantiles"][place] for line in result.lines], 5) for place in (0, 2)],
        groups=float(result.over_rounds("groups").mean()),
        bytes_down=int(result.clients["down"].sum()),
        bytes_up=int(result.clients["up"].sum()),
        most_bytes_held=int(result.clients["most_held"].max()),
        client_seconds=None if seconds is None else float(seconds.mean()),
        seconds=round(result.seconds, 1),
        version=__version__,
        machine=machine(),
    )


def machine() -> str:
    """What a run was measured on, in one line."""
    return f"{os.cpu_count()} cores of {_processor()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _rounded(values: Iterable[float], digits: int = 7) -> list[float]:
    """More digits than any table shows, and small files."""
    return [float(f"{value:.{digits}g}") for value in values]


def _toml(value: object) -> str:
    return f"'{msgspec.json.encode(value).decode()}'" if isinstance(value, list) else str(value)
