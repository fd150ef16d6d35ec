"""The target `drift`: a table and a chart per dataset from cells that are run once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp
from ofms.reproduction import cells, drift
from ofms.reproduction.bench import Bench, Figure, Section, Size
from ofms.reproduction.cells import CellStore
from ofms.reproduction.comparison import comparison
from ofms.reproduction.method_rows import METHOD, TUNED, Row
from ofms.reproduction.page import write_section
from ofms.reproduction.targets import TARGETS


@pytest.fixture
def models(tmp_path: Path) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{index}": mlp(64, [6], 10) for index in range(6)}
    architectures = {name: ("mlp", {"inputs": 64, "hidden": [6], "outputs": 10}) for name in modules}
    Dictionary.from_modules(modules, task="classification", architectures=architectures).write(tmp_path / "models")
    return str(tmp_path / "models")


def test_the_table_has_three_columns_per_kind(models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Size, "given", lambda self, experiment: {"clients": 3, "rounds": 24, "budget": "3"})

    def section() -> tuple[Section, Figure]:
        store = CellStore(tmp_path / "cells", models={"digits": models}, progress=False)
        made = TARGETS["drift"](Bench(store, ["digits"], Size(quick=True), chosen=True))
        (chart,) = made.figures
        assert isinstance(chart, Figure)
        return made, chart

    found, figure = section()
    (table,) = found.tables
    assert [name.partition(",")[0] for name in table.header[1::3]] == ["switch", "gradual", "recurring", "rotate"]
    assert {len(row) for row in table.rows} == {13}
    regret = table.data[0]
    assert regret["drift"] == "switch"
    assert regret["changes"] == [8, 16]
    assert regret["dynamic_regret"] >= regret["regret"], "the best of each phase is at least as good as one model"
    assert table.rows[0][12] == "–", "a rotation never settles"
    best, by_phase = (float(row[1]) for row in table.rows[-2:])
    assert by_phase >= best
    assert [curve.label for curve in figure.panels[0][1]] == [
        "the best model of each phase",
        *(row[0] for row in table.rows[:-2]),
    ]
    assert list(figure.panels[0][1][0].marks) == [9, 17]
    write_section(found, tmp_path / "out")
    assert (tmp_path / "out" / "drift-digits.png").exists()
    assert json.loads((tmp_path / "out" / "drift-digits.json").read_text())

    def fail(*rest: Any, **more: Any) -> None:
        pytest.fail("run again")

    monkeypatch.setattr(cells, "simulate", fail)
    again, same_figure = section()
    assert again.tables == found.tables
    for one, other in zip(figure.panels, same_figure.panels, strict=True):
        assert [curve.values.tolist() for curve in one[1]] == [curve.values.tolist() for curve in other[1]]


def test_fine_tuned_image_models_have_one_seed_and_all_else_three() -> None:
    def seeds(column: str, row: Row, **size: Any) -> list[int]:
        made = Bench(CellStore(Path("cells")), [column], Size(**size))
        return list(drift._with_seeds(made, column, row).size.seed_range(column))

    for column, row, expected in (("mnist", TUNED, 1), ("mnist", METHOD, 3), ("air", TUNED, 3), ("digits", METHOD, 3)):
        assert seeds(column, row) == [0, 1, 2][:expected]
        assert seeds(column, row, quick=True) == [0]
        assert seeds(column, row, seeds=2, first_seed=4) == [4, 5]


def test_a_comparison_shows_drift(models: str, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells", models={"digits": models}, progress=False)
    bench = Bench(store, ["digits"], Size(seeds=1))
    size: dict[str, Any] = {"clients": 3, "rounds": 12, "budget": "3"}
    assert [table.name for table in comparison(bench, ("mab",), **size).tables] == ["comparison", "traffic"]
    tables = comparison(bench, ("mab",), drift="switch", **size).tables
    assert [table.name for table in tables] == ["comparison", "drift", "traffic"]
    assert "--drift switch" in tables[0].data[0]["command"]
