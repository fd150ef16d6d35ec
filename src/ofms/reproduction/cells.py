"""Cells: one run each, stored in a file named after its configuration, so that it is never run twice."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.models.dictionary import Dictionary
from ofms.plugins import NO_TRUST, Trust, is_reference, source_key
from ofms.policies.registry import load_algorithm
from ofms.reproduction.curves import CurveStore
from ofms.runs.cell_file import content_key, write_cell
from ofms.runs.config import Experiment, RunConfig, load_experiment
from ofms.runs.dictionaries import dictionary_folder, find_dictionary
from ofms.runs.folder import CONFIG, SUMMARY, unfinished_run
from ofms.runs.interrupt import RunInterrupted
from ofms.runs.result import Result
from ofms.runs.run_command import run_command
from ofms.simulator.api import simulate
from ofms.simulator.experiments import resolve_experiment
from ofms.storage.files import remove_leftovers, require_writable
from ofms.storage.locks import claimed, is_locked


@dataclass(frozen=True)
class Cell:
    """One run: an experiment, a policy, a seed, and deviations from the experiment's settings.

    With `cached`, a frozen run may look up its models' outputs: the same figures up to rounding, so the same key.
    """

    experiment: str
    policy: str = "ofms-ft"
    seed: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    loopback: bool = False
    cached: bool = False

    def command(self, models: str | None = None, trust: Iterable[str] = ()) -> str:
        """The command that runs this cell, quoted for a shell.

        >>> Cell("air", given={"rounds": 20, "learning_rate": "10/sqrt(T)"}).command()
        "ofms run air --policy ofms-ft --seed 0 --rounds 20 --set 'learning_rate=10/sqrt(T)'"
        >>> Cell("air", given={"hindsight": False}).command()
        'ofms run air --policy ofms-ft --seed 0 --set hindsight=false'
        """
        given = {"seed": self.seed} | dict(self.given)
        return run_command(
            self.experiment, given, policy=self.policy, models=models, trust=trust, loopback=self.loopback
        )


class CellStore:
    """Run cells and store them in a folder.

    Parameters
    ----------
    models
        Dictionary folders by experiment; the other experiments use their own pre-trained dictionaries.
    prepare
        Changes an experiment before its cells are run; a quick reproduction pre-trains less.
    run
        Whether missing cells are run; otherwise they are left out.
    trust
        Packages that may be imported, in addition to those that an experiment's file trusts.
    keep_runs
        Whether to keep the runs' folders next to the cells, for a report.
    cache
        Whether cells that may look up their models' outputs do so.
    """

    def __init__(
        self,
        folder: Path,
        *,
        models: Mapping[str, str] | None = None,
        prepare: Callable[[Experiment], Experiment] = lambda experiment: experiment,
        run: bool = True,
        trust: Trust = NO_TRUST,
        keep_runs: bool = False,
        workers: int | None = None,
        progress: bool = True,
        cache: bool = True,
    ) -> None:
        self.folder, self.models, self.workers, self.progress = folder, dict(models or {}), workers, progress
        self.used: dict[str, Result] = {}
        self.curves = CurveStore(folder, run=run)
        self.runs_missing, self.trust = run, trust
        self._prepare, self._keep_runs, self._cache = prepare, keep_runs, cache
        self._dictionaries: dict[str, tuple[Dictionary, str]] = {}

    def results(self, cells: Iterable[Cell]) -> list[Result]:
        """The results of cells, in order; missing ones are run, or left out."""
        # A cell's key needs its dictionary, and showing cells must not train one.
        cells = [cell for cell in cells if self.runs_missing or self.has_dictionary(cell.experiment)]
        missing = [cell for cell in cells if self.find(cell) is None] if self.runs_missing else []
        if missing:
            require_writable(self.folder)
            remove_leftovers(self.folder)
        with tqdm(
            total=len(missing), desc="cells", unit="cell", disable=None if self.progress and missing else True
        ) as bar:
            for cell in missing:
                bar.set_postfix_str(f"{cell.experiment} {cell.policy} seed {cell.seed}")
                if not self.try_run(cell):
                    remedy = "another process is running this cell; wait until it ends, or stop it"
                    raise InvalidInput("folder", self.run_folder(cell), remedy)
                bar.update()
        if self.runs_missing and not self._keep_runs:
            for cell in cells:
                self._remove_leftover(cell)
        found = {self._path(cell).name: self.find(cell) for cell in cells}
        known = {name: result for name, result in found.items() if result is not None}
        self.used |= known
        return list(known.values())

    def find(self, cell: Cell) -> Result | None:
        """The result of a cell that was run before."""
        path = self._path(cell)
        return Result.load(path) if path.exists() else None

    def config(self, cell: Cell) -> RunConfig:
        """The resolved configuration of a cell, without the dictionary's folder."""
        given = {"history": 0, "seed": cell.seed} | dict(cell.given)
        _, config = resolve_experiment(cell.experiment, policy=cell.policy, trust=self.trust, given=given)
        return msgspec.structs.replace(config, models=None)

    def has_dictionary(self, experiment: str) -> bool:
        """Whether an experiment's dictionary exists, so that nothing has to be pre-trained."""
        loaded = self._prepare(load_experiment(experiment))
        named = self.models.get(experiment, loaded.models)
        return named is not None or dictionary_folder(loaded, experiment, self.trust).exists()

    def dictionary(self, experiment: str) -> tuple[Dictionary, str]:
        """An experiment's dictionary and what identifies it, its revision; pre-trained if it is missing.

        The user's own architectures, costs and patterns of fine-tuned parameters are part of what identifies it.
        """
        if experiment not in self._dictionaries:
            loaded = self._prepare(load_experiment(experiment))
            config = msgspec.structs.replace(
                self.config(Cell(experiment)), models=self.models.get(experiment, loaded.models)
            )
            dictionary = find_dictionary(loaded, config, progress=self.progress, workers=self.workers)
            code = source_key((model.architecture for model in dictionary.models), config.trusted())
            self._dictionaries[experiment] = (
                dictionary,
                " ".join([dictionary.revision(), *code, *dictionary.deviations()]),
            )
        return self._dictionaries[experiment]

    def version_warning(self) -> list[str]:
        """One line if cells that were shown are of other versions; published ones stay as they are."""
        versions = [str(result.figures["version"]) for result in self.used.values()]
        others = Counter(version for version in versions if version != __version__)
        if not others:
            return []
        listed = ", ".join(f"{count} of {version}" for version, count in sorted(others.items()))
        return [
            f"of {len(versions)} cells in {self.folder}, {listed} were run by other versions than {__version__}; "
            "remove their files to run them again"
        ]

    def run_folder(self, cell: Cell) -> Path:
        """The folder of a cell's run: one that is kept, or that is removed when the cell is written."""
        return self.folder.parent / ("runs" if self._keep_runs else "unfinished") / self._path(cell).stem

    def _path(self, cell: Cell) -> Path:
        # Fields without a value are left out, so that a new optional field does not change existing keys.
        config = self.config(cell)
        made = [config.identity(), self.dictionary(cell.experiment)[1], cell.loopback]
        if config.stream is not None:
            made.append(config.stream.fingerprint())
        policies = [config.policy, *(event.policy or "" for event in config.events or ())]
        for name in policies:
            if is_reference(name):
                # Its modules are known once it is imported.
                load_algorithm(name, config.trusted())
        keys = source_key(policies, config.trusted(), imported=True)
        made += sorted({*keys, *source_key([config.dataset or ""], config.trusted())})
        policy = cell.policy.replace(":", ".")
        return self.folder / f"{Path(cell.experiment).stem}-{policy}-seed{cell.seed}-{content_key(made)}.json"

    def try_run(self, cell: Cell) -> bool:
        """Run a cell unless another process runs it; whether it has been run."""
        with claimed(self._path(cell)) as ours:
            if not ours or is_locked(self.run_folder(cell)):
                return False
            if self.find(cell) is None:  # Else another process has run it in the meantime.
                self._run(cell)
            return True

    def _run(self, cell: Cell) -> None:
        if not self.config(cell).hindsight:
            raise InvalidInput("hindsight", False, "a cell includes regret; leave it on")
        folder = self.run_folder(cell)
        dictionary, _ = self.dictionary(cell.experiment)
        options: dict[str, Any] = {
            "models": dictionary,
            "workers": self.workers,
            "progress": self.progress,
            "trust": self.trust,
            "cache": self._cache and cell.cached,
            "report": False,
        }
        interrupted = (folder / CONFIG).exists() and not (folder / SUMMARY).exists()
        if folder.exists() and not interrupted:
            shutil.rmtree(folder)
        try:
            result = self._resume(folder, options) if interrupted else None
            if result is None:
                history = {"history": 10 if self._keep_runs else 0}
                result = simulate(
                    cell.experiment,
                    policy=cell.policy,
                    loopback=cell.loopback,
                    out=folder,
                    **options,
                    **({"seed": cell.seed} | dict(cell.given) | history),
                )
        except RunInterrupted as interruption:
            reason = str(interruption).partition(";")[0]
            message = f"{cell.experiment}, {cell.policy}: {reason}; the same command resumes it"
            raise RunInterrupted(message, interruption.number) from None
        command = cell.command("DIR" if cell.experiment in self.models else None, self.trust.packages)
        write_cell(result, self._path(cell), config=self.config(cell), command=command)
        if not self._keep_runs:
            _remove(folder)

    def _remove_leftover(self, cell: Cell) -> None:
        """Remove the run of a written cell: a process was killed before it had removed all of it."""
        folder = self.run_folder(cell)
        if folder.exists():
            with claimed(self._path(cell)) as ours:
                if ours and not is_locked(folder) and self._path(cell).exists():
                    _remove(folder)

    def _resume(self, folder: Path, options: dict[str, Any]) -> Result | None:
        """Resume an interrupted run; None if its checkpoint cannot be used, for example one of another version."""
        try:
            unfinished_run(folder)
        except InvalidInput:
            shutil.rmtree(folder)
            return None
        try:
            return simulate(resume=folder, **options)
        except InvalidInput as error:
            # Any other error, such as missing data or a full disk, does not invalidate the checkpoint.
            if error.field not in ("run", "resume"):
                raise
            shutil.rmtree(folder)
            return None


def _remove(folder: Path) -> None:
    """Remove a folder, and the one that it is in if that is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
