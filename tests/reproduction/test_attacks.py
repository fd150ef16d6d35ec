"""The target `attacks`: tables and charts from cells, of the clients that are honest in all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ofms.core.attacks import Attack
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp
from ofms.reproduction import attacks
from ofms.reproduction.bench import Bench, Size
from ofms.reproduction.cells import Cell, CellStore
from ofms.reproduction.page import write_section
from ofms.reproduction.targets import TARGETS


def test_the_table_has_a_row_per_aggregation_and_a_column_per_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{index}": mlp(64, [6], 10) for index in range(4)}
    architectures = {name: ("mlp", {"inputs": 64, "hidden": [6], "outputs": 10}) for name in modules}
    Dictionary.from_modules(modules, task="classification", architectures=architectures).write(tmp_path / "models")
    monkeypatch.setattr(Size, "given", lambda self, experiment: {"clients": 5, "rounds": 12, "budget": "3"})
    monkeypatch.setattr(attacks, "_AGGREGATIONS", ("sum", "median"))
    monkeypatch.setattr(attacks, "_CASES", {None: "no attack", "largest:0.3": "largest norm, 3 in 10"})
    store = CellStore(tmp_path / "cells", models={"digits": str(tmp_path / "models")}, progress=False)
    section = TARGETS["attacks"](Bench(store, ["digits"], Size(quick=True), chosen=True))
    (table,) = section.tables
    assert table.header == ["", "no attack", "largest norm, 3 in 10"]
    assert [row[0] for row in table.rows] == [
        *("late hedging, sum", "late hedging, median", "late hedging, frozen"),
        *("OFMS-FT, sum", "OFMS-FT, median", "OFMS-FT, frozen"),
    ]
    hostile = Attack("largest", 0.3).hostile(0, 5)
    given = {"clients": 5, "rounds": 12, "budget": "3", "aggregation": "median", "attack": "largest:0.3"}
    (result,) = store.results([Cell("digits", "ofms-ft", 0, given)])
    shown = float(table.rows[4][2])
    assert shown == pytest.approx(100 * float(np.mean(result.score[~hostile])), abs=0.01)
    write_section(section, tmp_path / "out")
    assert (tmp_path / "out" / "attacks-digits.png").exists()
