"""Cells that several processes run together: each is run once; what a killed process began, another one takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ofms.reproduction import spreading
from ofms.reproduction.cells import Cell, CellStore
from ofms.runs.result import Result
from ofms.storage.locks import claimed
from tests.ranked import WAIT_SECONDS

SMALL = {"clients": 4, "rounds": 6}


def cells(seeds: int = 2) -> list[Cell]:
    return [Cell("digits", policy, seed, SMALL) for policy in ("mab", "ofms-ft") for seed in range(seeds)]


def test_a_cell_that_another_process_has_taken_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, wanted = CellStore(tmp_path, progress=False), cells()
    run, taken = list[Cell](), claimed(store._path(wanted[0]))
    waits = list[float]()
    monkeypatch.setattr(CellStore, "_run", _noting(run))

    def wait(seconds: float) -> None:
        """The other process ends without having run it."""
        waits.append(seconds)
        taken.__exit__(None, None, None)

    monkeypatch.setattr("ofms.reproduction.spreading.time.sleep", wait)
    assert taken.__enter__()
    assert not store.try_run(wanted[0])
    spreading.spread(store, [lambda each: each.results(wanted)])
    assert len(waits) == 1
    assert sorted(run, key=repr) == sorted(wanted, key=repr), "each of them once"
    assert run[-1] == wanted[0], "as soon as it was free"
    assert [cell.policy for cell in run[:2]] == ["ofms-ft", "ofms-ft"], "the longest first"
    assert len(store.results(wanted)) == len(wanted)


def _noting(run: list[Cell]):  # type: ignore[no-untyped-def]
    original = CellStore._run

    def noted(self: CellStore, cell: Cell) -> None:
        run.append(cell)
        original(self, cell)

    return noted


@pytest.mark.slow
def test_two_processes_compare_policies_with_the_figures_of_one(tmp_path: Path) -> None:
    size = ["--clients", "4", "--rounds", "30", "--seeds", "2", "--policy", "ofms-ft", "--policy", "mab"]
    for processes in ("1", "2"):
        out = ["--out", str(tmp_path / processes), "--processes", processes, "-q"]
        command = [sys.executable, "-m", "ofms", "compare", "digits", *size, *out]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_SECONDS)
    one, two = (sorted((tmp_path / name / "compare-digits" / "cells").glob("*.json")) for name in ("1", "2"))
    assert [path.name for path in one] == [path.name for path in two]
    assert len(one) == 4
    for alone, shared in zip(one, two, strict=True):
        assert Result.load(alone).score.tolist() == Result.load(shared).score.tolist()


def test_cells_that_depend_on_a_missing_dictionary_are_asked_for_once_one_process_has_trained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ofms.runs.dictionaries.cache_folder", lambda: tmp_path / "cache")
    store, first = CellStore(tmp_path / "cells", progress=False), Cell("digits", "mab", 0, SMALL)
    sizes, waits, trained = list[int](), list[float](), claimed(tmp_path / "cells" / "dictionary-digits")

    def ask(each: CellStore) -> None:
        each.results([first])
        sizes.append(len(each.dictionary("digits")[0]))
        each.results([Cell("digits", "mab", 1, SMALL | {"budget": str(sizes[-1])})])

    def wait(seconds: float) -> None:
        """The other process ends before it has trained anything."""
        assert not store.has_dictionary("digits")
        waits.append(seconds)
        trained.__exit__(None, None, None)

    monkeypatch.setattr("ofms.reproduction.spreading.time.sleep", wait)
    (tmp_path / "cells").mkdir()
    assert trained.__enter__()
    spreading.spread(store, [ask])
    assert len(waits) == 1
    assert set(sizes) == {20}
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2
