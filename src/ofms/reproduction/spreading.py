"""Cells that several processes run together: each takes the next one that no other has taken, the longest first.

The processes share nothing but the folder: a lock on a cell's file says that it is taken, and ends with its process. So
another command on the same folder takes part as well, and what a killed process began is resumed by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ofms.models.dictionary import Dictionary
from ofms.reproduction.cells import Cell, CellStore
from ofms.reproduction.convex import ServerCurve
from ofms.reproduction.curves import CurveStore
from ofms.runs.result import Result
from ofms.storage.files import require_writable
from ofms.storage.locks import claimed

_WAIT_SECONDS = 0.5
# What a sample costs to compute, relative to that of a small network.
_IMAGE_COST = {"cifar10": 400.0, "mnist": 200.0}


class UntrainedDictionary(Exception):
    """Which cells are asked for depends on a dictionary that does not exist yet."""


class Collector(CellStore):
    """A store that runs and trains nothing: it notes the dictionaries, cells and curves that are missing."""

    def __init__(self, store: CellStore) -> None:
        self.__dict__ |= store.__dict__
        self.used = {}
        self.missing: dict[tuple[Any, ...], Cell] = {}
        self.untrained: set[str] = set()
        self.curves = self.missing_curves = _CurveCollector(store.curves.folder)

    def results(self, cells: Iterable[Cell]) -> list[Result]:
        """Those that were run before."""
        found = []
        for cell in cells:
            trained = self.has_dictionary(cell.experiment)
            if not trained:
                self.untrained.add(cell.experiment)
            result = self.find(cell) if trained else None
            if result is None:
                self.missing[cell.experiment, cell.policy, cell.seed, repr(sorted(cell.given.items()))] = cell
            else:
                found.append(result)
        return found

    def dictionary(self, experiment: str) -> tuple[Dictionary, str]:
        """An experiment's dictionary, unless it would have to be pre-trained."""
        if not self.has_dictionary(experiment):
            self.untrained.add(experiment)
            raise UntrainedDictionary(experiment)
        return super().dictionary(experiment)


class _CurveCollector(CurveStore):
    """Note the curves that are missing, by their names and inputs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, run=False)
        self.missing: list[tuple[str, Mapping[str, Any], Callable[[], ServerCurve]]] = []

    def find(self, name: str, made: Mapping[str, Any], compute: Callable[[], ServerCurve]) -> ServerCurve | None:
        found = super().find(name, made, compute)
        if found is None:
            self.missing.append((name, made, compute))
        return found


def spread(store: CellStore, asks: Sequence[Callable[[CellStore], object]]) -> None:
    """Run the cells that `asks` ask a store for, together with other processes that do the same; until none is missing.

    Which cells they ask for may depend on dictionaries, and on the results of other cells.
    """
    require_writable(store.folder)
    while tasks := _tasks(store, asks):
        while tasks:
            left = [task for task in tasks if not task()]
            if len(left) == len(tasks):
                time.sleep(_WAIT_SECONDS)
            tasks = left


def _tasks(store: CellStore, asks: Sequence[Callable[[CellStore], object]]) -> list[Callable[[], bool]]:
    """What is to be done, the longest first: each does it unless another process does; whether it is done."""
    wanted = Collector(store)
    for ask in asks:
        with suppress(UntrainedDictionary):
            ask(wanted)
    untrained = sorted(wanted.untrained, key=lambda experiment: -_IMAGE_COST.get(experiment, 1.0))
    cells = sorted(wanted.missing.values(), key=lambda cell: -_cost(store, cell))
    return [
        *(partial(_train, store, experiment) for experiment in untrained),
        *(partial(_take, store, cell) for cell in cells),
        *(partial(_take_curve, store, *curve) for curve in wanted.missing_curves.missing),
    ]


def _train(store: CellStore, experiment: str) -> bool:
    if store.has_dictionary(experiment):
        return True
    with claimed(store.folder / f"dictionary-{Path(experiment).stem}") as ours:
        if ours:
            store.dictionary(experiment)
        return ours


def _take(store: CellStore, cell: Cell) -> bool:
    if not store.has_dictionary(cell.experiment):
        return False
    return store.find(cell) is not None or store.try_run(cell)


def _take_curve(store: CellStore, name: str, made: Mapping[str, Any], compute: Callable[[], ServerCurve]) -> bool:
    with claimed(store.folder / name) as ours:
        return ours and CurveStore(store.folder).find(name, made, compute) is not None


def _cost(store: CellStore, cell: Cell) -> float:
    """How long a cell takes, in no unit: fine-tuning computes a window of samples for each held model."""
    config = store.config(cell)
    settings, sizes = config.settings, config.budget.replace(":", ",").split(",")
    tuned = settings.get("fine_tuning_rate") or settings.get("local_rate") or config.policy == "late-hedge"
    budget = max((float(size) for size in sizes if _is_number(size)), default=5.0)
    each = 1.0 + (budget * float(settings.get("window") or 50) / config.interval if tuned else 0.0)
    return config.clients * config.rounds * each * _IMAGE_COST.get(cell.experiment, 1.0)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
