"""Keys of cells depend on their configuration, not on the place of files: published cells are found again."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ofms.models.dictionary import Dictionary
from ofms.plugins import Trust, load_object
from ofms.reproduction.cells import Cell, CellStore
from ofms.runs.dictionaries import dictionary_folder
from ofms.runs.loading import load_experiment

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
    revisions: dict[str, str] = {}
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


POLICY = (Path(__file__).parents[2] / "examples" / "epsilon_greedy.py").read_text()


def test_an_edited_policy_has_another_key(
    write_module: Callable[[str, str], Trust], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So has an edited module that the policy imports."""
    monkeypatch.setattr(CellStore, "dictionary", lambda self, experiment: (None, "revision"))

    def key() -> str:
        monkeypatch.delitem(sys.modules, "edited_policy", raising=False)
        store = CellStore(tmp_path / "cells", run=False, progress=False, trust=trust)
        return store.run_folder(Cell("digits", "edited_policy:algorithm")).name

    write_module("helper_of_policy", "SHARE = 0.1\n")
    trust = write_module("edited_policy", POLICY + "\nimport helper_of_policy\n")
    keys = [key(), key()]
    assert keys[0] == keys[1]
    write_module("helper_of_policy", "SHARE = 0.2\n")
    keys.append(key())
    write_module("edited_policy", POLICY.replace("argmin", "argmax") + "\nimport helper_of_policy\n")
    keys.append(key())
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    "importing",
    [
        "from helper_elsewhere import SHARE",
        "import importlib\nSHARE = importlib.import_module('helper_elsewhere').SHARE",
        "def later():\n    from helper_elsewhere import SHARE",
        "import importlib\nother = importlib.import_module('_'.join(['helper', 'elsewhere']))",
        "import importlib\nmean = importlib.import_module('_'.join(['helper', 'elsewhere'])).mean",
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        "spec = spec_from_file_location('helper', FILE)\nhelper = module_from_spec(spec)\n"
        "spec.loader.exec_module(helper)",
    ],
)
def test_a_policy_whose_helper_elsewhere_is_edited_has_another_key(
    importing: str, write_module: Callable[[str, str], Trust], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper in another folder of Python's path, which imports one of its own."""
    monkeypatch.setattr(CellStore, "dictionary", lambda self, experiment: (None, "revision"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    file = tmp_path / "elsewhere" / "helper_elsewhere.py"
    trust = write_module("edited_policy", f"{POLICY}\nFILE = {str(file)!r}\n{importing}\n")

    def key(share: float, deeper: int) -> str:
        file.write_text(f"import helper_deeper\nSHARE = {share}\ndef mean(): return {share}\n")
        (file.parent / "helper_deeper.py").write_text(f"DEPTH = {deeper}\n")
        for name in ("edited_policy", "helper_elsewhere", "helper_deeper"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        store = CellStore(tmp_path / "cells", run=False, progress=False, trust=trust)
        return store.run_folder(Cell("digits", "edited_policy:algorithm")).name

    assert key(0.1, 1) == key(0.1, 1)
    assert len({key(0.1, 1), key(0.2, 1), key(0.2, 2)}) == 3


def test_an_edited_policy_of_an_event_has_another_key(
    write_module: Callable[[str, str], Trust], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CellStore, "dictionary", lambda self, experiment: (None, "revision"))
    trust = write_module("edited_policy", POLICY)
    (tmp_path / "own.toml").write_text(
        'dataset = "digits"\nbudget = "3"\nbandwidth = "50%"\nclients = 4\nrounds = 20\n'
        '[[events]]\nexchange = 5\npolicy = "edited_policy:algorithm"\n'
    )

    def key() -> str:
        store = CellStore(tmp_path / "cells", run=False, progress=False, trust=trust)
        return store.run_folder(Cell(str(tmp_path / "own.toml"))).name

    keys = [key(), key()]
    assert keys[0] == keys[1]
    write_module("edited_policy", POLICY.replace("argmin", "argmax"))
    assert key() not in keys


FACTORY = """
from torch import nn
def small(width): return nn.Sequential(nn.Linear(3, width), nn.{0}(), nn.Linear(width, 1))
"""


def test_edited_factories_and_costs_have_another_key(
    write_module: Callable[[str, str], Trust], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = write_module("own_networks", FACTORY.format("ReLU"))
    folder = tmp_path / "models"
    names = {f"net{k}": ("own_networks:small", {"width": 3 + k}) for k in range(3)}
    built = {
        name: load_object(reference, field="x", trusted=trust)(**options)
        for name, (reference, options) in names.items()
    }
    Dictionary.from_modules(built, task="regression", architectures=names).write(folder)
    rows = [f"{pump},{step / 10},{step % 3},{step % 2},0.1" for pump in range(3) for step in range(8)]
    (tmp_path / "pumps.csv").write_text("\n".join(["pump,heat,speed,flow,load", *rows]))
    (tmp_path / "own.toml").write_text(
        'summary = "pumps"\nbudget = "3"\nbandwidth = "50%"\nmodels = "models"\n'
        '[stream]\nfile = "pumps.csv"\ntask = "regression"\ntarget = "load"\nclient = "pump"\n'
    )

    def key() -> str:
        monkeypatch.delitem(sys.modules, "own_networks", raising=False)
        store = CellStore(tmp_path / "cells", run=False, progress=False, trust=trust)
        return store.run_folder(Cell(str(tmp_path / "own.toml"))).name

    keys = [key(), key()]
    assert keys[0] == keys[1]
    write_module("own_networks", FACTORY.format("Tanh"))
    keys.append(key())
    index = json.loads((folder / "dictionary.json").read_text())
    index["models"][0]["storage"] = 1000
    (folder / "dictionary.json").write_text(json.dumps(index))
    keys.append(key())
    assert len(set(keys)) == 3


def test_an_edited_dataset_is_not_looked_up_in_the_cache(
    write_module: Callable[[str, str], Trust], tmp_path: Path
) -> None:
    text = 'summary = "own"\nbudget = "3"\nbandwidth = "50%"\nclients = 2\nrounds = 3\ndataset = "own_data:dataset"\n'
    (tmp_path / "own.toml").write_text(
        text + '[pretraining]\nepochs = 1\nbatch_size = 2\n[[pretraining.networks]]\nname = "a"\n'
        'architecture = "own_nets:small"\n[pretraining.networks.options]\n'
    )
    experiment = load_experiment(str(tmp_path / "own.toml"))
    folders = set()
    for module, number in (("own_data", 1), ("own_nets", 1), ("own_data", 2), ("own_nets", 2)):
        trust = write_module(module, f"dataset = small = {number}\n")
        folders.add(dictionary_folder(experiment, "own", trust))
    assert len(folders) == 4
    digits = load_experiment("digits")
    assert dictionary_folder(digits, "digits", trust) == dictionary_folder(digits, "digits")
