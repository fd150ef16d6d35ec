"""The tables of `ofms reproduce method`, with fewer policies, ingredients, clients and rounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofms.cli import _main
from ofms.compute import outputs
from ofms.policies.registry import setting_names
from ofms.reproduction import bench, cells, method, method_rows
from ofms.reproduction.bench import Bench, Section, Size
from ofms.reproduction.cells import CellStore
from ofms.reproduction.method_rows import Row
from ofms.runs.result import Result
from tests.reproduction.dictionaries import write_dictionary

METHOD = Row("ofms-ft", {"fine_tuning_rate": 0, "learning_rate": 1.0})
OFMS_FT = Row("ofms-ft", {"fine_tuning_rate": 0})
SMALL = {"clients": 4, "rounds": 12}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "METHOD": METHOD,
        "FROZEN_OFMS_FT": OFMS_FT,
        "ROWS": {"published": Row("ofms-ft", tuned=True), "frozen": OFMS_FT, "method": METHOD},
        "SIMPLE_ROWS": {"other": Row("mab")},
        "FURTHER_ROWS": {"random": Row("rms-ft", {"fine_tuning_rate": 0})},
        "LIMITS": {"all models held": Row("ofms-ft", METHOD.given, holds_all=True)},
        "TUNED": Row("ofms-ft", tuned=True),
        "TUNED_ABLATION": {"frozen": {"fine_tuning_rate": 0}, "by use": {"gradient_weight": "use"}},
        "ABLATION": {"no rate": {"learning_rate": 0.01}, "bounded": {"loss_bound": "clip"}},
        "BUDGETS": ("5",),
    }.items():
        monkeypatch.setattr(method, name, value)
    monkeypatch.setattr(bench.Size, "given", lambda self, experiment: SMALL)


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An empty cache; counts how often all outputs are computed."""
    calls = []
    blocks = outputs.ModelOutputs.blocks

    def counted(self: outputs.ModelOutputs, workers: int, *, progress: bool) -> object:
        calls.append(workers)
        return blocks(self, workers, progress=progress)

    monkeypatch.setattr(outputs.ModelOutputs, "blocks", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


Measure = Callable[..., Section]


@pytest.fixture
def measure(tmp_path: Path, few: None) -> Measure:
    models = write_dictionary(tmp_path / "models", 64, 10, "classification")

    def measured(*, run: bool = True, **size: Any) -> Section:
        store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False, run=run)
        return method.method(Bench(store, ["digits"], Size(**size), chosen=True))

    return measured


def test_tables_of_policies_budgets_and_ingredients(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = measure(run=False, seeds=2)
    assert {cell for table in empty.tables for row in table.rows for cell in row[1:]} <= {"–", ""}
    assert empty.figures == []
    section = measure(seeds=2)
    main, budgets, ablation, tuned = section.tables
    assert main.header == ["", "digits, %", "down"]
    assert [row[0] for row in main.rows] == [
        *("published", "frozen", "method", "random", "the best single model in hindsight", "all models held")
    ]
    assert {len(row) for row in main.rows} == {3}
    assert all("±" in row[1] and float(row[2]) >= 0 for row in main.rows if row[0] != main.rows[4][0])
    # Six models of one size are all held, so that each is downloaded once in twelve rounds.
    assert main.rows[5][2] == f"{6 / 12:.2f}"
    assert [row[1] for row in budgets.rows[:3]] == [row[1] for row in main.rows[:3]], (
        "the same cells at the same budget"
    )
    assert [row[0] for row in budgets.rows] == [
        f"{label}, B = 5" for label in ("published", "frozen", "method", "other")
    ]
    assert ablation.name == "method-ablation-5"
    assert ablation.rows[0][1] == main.rows[2][1]
    assert tuned.name == "method-ablation-tuned"
    assert [row[0] for row in tuned.rows] == ["nothing left out", "frozen", "by use"]
    assert [row[1] for row in tuned.rows[:2]] == [row[1] for row in main.rows[:2]]
    assert "Seeds: digits 2." in main.notes
    assert [figure.name for figure in section.figures] == ["method", "method-ablation", "method-ablation-tuned"]

    monkeypatch.setattr(cells, "simulate", lambda *rest, **more: pytest.fail("run again"))
    assert measure(seeds=2) == section, "finished cells are not run again"

    found = [Result.load(path) for path in (tmp_path / "cells").glob("*.json")]

    def scores(rate: float) -> list[Any]:
        """Of the same clients, in the order of the seeds."""
        some = [result for result in found if result.config.settings.get("learning_rate") == rate]
        same = [
            result for result in some if result.config.budget == "5" and result.config.settings["loss_bound"] == "raw"
        ]
        return [result.score for result in sorted(same, key=lambda result: result.config.seed)]

    changes = 100 * (np.concatenate(scores(0.01)) - np.concatenate(scores(1.0)))
    assert changes.size == 2 * SMALL["clients"]
    assert ablation.rows[1][2] == f"{changes.mean():.2f} ± {changes.std() / np.sqrt(changes.size):.2f}"


def test_without_fine_tuning_there_are_as_many_seeds_as_of_frozen_rows() -> None:
    rows = method._without(Row("ofms-ft", {"window": 9}, tuned=True), method_rows.TUNED_ABLATION)
    assert {label for label, row in rows.items() if not row.tuned} == {"no fine-tuning"}
    assert all(row.given["window"] == 9 for row in rows.values())


def test_numbers_of_seeds() -> None:
    def seeds(column: str, *, tuned: bool, **size: Any) -> list[int]:
        return list(method._seeds(Bench(CellStore(Path("cells")), [column], Size(**size)), column, tuned=tuned))

    assert seeds("air", tuned=True) == seeds("digits", tuned=False) == [0, 1, 2, 3, 4]
    assert seeds("mnist", tuned=False) == seeds("cifar10", tuned=False) == [0, 1, 2]
    assert seeds("mnist", tuned=True) == [0]
    assert seeds("mnist", tuned=True, seeds=2) == [0, 1]
    assert seeds("digits", tuned=False, quick=True) == [0, 1]


@pytest.mark.usefixtures("few")
def test_frozen_cells_look_outputs_up_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], computed: list[int]
) -> None:
    monkeypatch.setattr(method, "FURTHER_ROWS", {})
    monkeypatch.setattr(method, "ABLATION", {"bounded": {"loss_bound": "clip"}})
    models = write_dictionary(tmp_path / "models", 64, 10, "classification")
    arguments = ["reproduce", "method", "--quick", "--seeds", "1", "--column", "digits", "--models", f"digits={models}"]
    found = []
    for name, options in (("one", []), ("two", ["--no-cache"])):
        assert _main([*arguments, "--out", str(tmp_path / name), *options]) == 0
        found.append(json.loads((tmp_path / name / "method.json").read_text()))
        assert (tmp_path / name / "method.png").exists()
        assert (tmp_path / name / "method-ablation.svg").exists()
    assert len(computed) == 1, "one stream: computed once, and not at all with --no-cache"
    assert "late-hedge" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "one" / "cells").iterdir()} == {
        path.name for path in (tmp_path / "two" / "cells").iterdir()
    }
    for one, two in zip(*found, strict=True):
        assert one["mean"] == pytest.approx(two["mean"], rel=1e-5)
        assert one["bytes_down"] == two["bytes_down"]


def test_compared_policies_share_outputs(tmp_path: Path, computed: list[int]) -> None:
    models = write_dictionary(tmp_path / "models", 64, 10, "classification")
    arguments = ["compare", "digits", "--seeds", "1", "--models", str(models), "--clients", "3", "--rounds", "8"]
    for option, times in (("--no-cache", 0), ("--cache", 1)):
        policies = ["--policy", "mab", "--policy", "budgeted-experts"]
        assert _main([*arguments, *policies, "--budget", "3", "--out", str(tmp_path / option), option]) == 0
        assert len(computed) == times


def test_every_row_and_ingredient_has_known_settings() -> None:
    rows = {**method_rows.ROWS, **method_rows.FURTHER_ROWS, **method_rows.LIMITS}
    for whole, ablation in (
        (method_rows.METHOD, method_rows.ABLATION),
        (method_rows.TUNED, method_rows.TUNED_ABLATION),
    ):
        rows |= {label: replace(whole, given=off) for label, off in ablation.items()}
    for label, row in rows.items():
        assert row.given.keys() <= setting_names(row.policy), label
