"""The published cells are found again: their keys depend on how they are made, not on where files lie."""

from __future__ import annotations

import json
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ofms.reproduction.cells import Cell, CellStore

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "cells"


def cell_of(command: str) -> Cell:
    """The cell that a published command runs."""
    _, _, experiment, *words = shlex.split(command.removesuffix(" --loopback"))
    values: dict[str, Any] = {}
    for option, text in zip(words[::2], words[1::2], strict=True):
        name, _, value = text.partition("=") if option == "--set" else (option[2:], "", text)
        try:
            values[name] = tomllib.loads(f"value = {value}")["value"] if option in ("--set", "--clients") else value
        except tomllib.TOMLDecodeError:
            values[name] = value
    values.pop("models", None)
    policy, seed = values.pop("policy"), int(values.pop("seed"))
    return Cell(experiment, policy, seed, values, command.endswith(" --loopback"))


def test_every_published_cell_has_the_key_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = {}
    monkeypatch.setattr(CellStore, "dictionary", lambda self, experiment: (None, revisions[experiment]))
    store = CellStore(PUBLISHED, run=False, progress=False)
    found = 0
    for path in sorted(PUBLISHED.iterdir()):
        record = json.loads(path.read_bytes())
        if "command" not in record:
            continue  # A curve that is not a run.
        cell = cell_of(record["command"])
        revisions[cell.experiment] = record["revision"]
        assert store.run_folder(cell).name == path.stem, record["command"]
        found += 1
    assert found > 400


def test_a_key_does_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellStore, "dictionary", lambda self, experiment: (None, "revision"))
    first = tmp_path / "first"
    first.mkdir()
    (first / "own.toml").write_text(
        'summary = "pumps"\nbudget = "3"\nbandwidth = "50%"\nmodels = "models"\n'
        '[stream]\nfile = "pumps.csv"\ntask = "regression"\ntarget = "load"\nclient = "pump"\n'
        '[trust]\npackages = ["networks"]\n'
    )
    rows = [f"{pump},{step / 10},{step % 3},0.1" for pump in range(3) for step in range(8)]
    (first / "pumps.csv").write_text("\n".join(["pump,heat,speed,load", *rows]))
    shutil.copytree(first, tmp_path / "second")
    store = CellStore(tmp_path / "cells", run=False, progress=False)
    names = {store.run_folder(Cell(str(tmp_path / folder / "own.toml"))).name for folder in ("first", "second")}
    assert len(names) == 1
    (first / "pumps.csv").write_text((first / "pumps.csv").read_text().replace("0.7", "0.8"))
    assert store.run_folder(Cell(str(first / "own.toml"))).name not in names
