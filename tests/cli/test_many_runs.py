"""What commands that run many simulations warn about: every run counts, and each line is printed once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ofms
from ofms.models.zoo import build_module
from tests.cli.commands import run

CLIENTS, ROUNDS = "abcd", 20
DROPPED = "the stream drops 1 of 81 rows"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """One client has a row more than the others, and most targets are too large for the losses."""
    options = {"inputs": 2, "hidden": [4], "outputs": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{index}": build_module("mlp", options) for index in range(3)}
    architectures = dict.fromkeys(modules, ("mlp", options))
    ofms.Dictionary.from_modules(modules, task="regression", architectures=architectures).write(tmp_path / "models")
    random = np.random.default_rng(0)
    rows = [
        f"{client},{random.normal()},{random.normal()},{30 * random.normal()}"
        for client in CLIENTS
        for _ in range(ROUNDS + (client == "a"))
    ]
    (tmp_path / "data.csv").write_text("\n".join(["client,one,two,target", *rows]))
    path = tmp_path / "own.toml"
    path.write_text(
        'budget = "2"\nbandwidth = "100%"\nmodels = "models"\n'
        '[stream]\nfile = "data.csv"\ntask = "regression"\nclient = "client"\ntarget = "target"\n'
    )
    return path


def lines_with(words: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if words in line]


def test_a_comparison_warns_about_all_its_runs(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = ("--policy", "mab", "--policy", "ofms-ft", "--set", "loss_bound=clip")
    out = tmp_path / "results"
    for _ in range(2):  # Then from finished cells.
        assert run("compare", experiment, *policies, "--seeds", "2", "--out", out, "-q") == 0
        printed = capsys.readouterr()
        (line,) = lines_with("losses reach their bound (clip) on", printed.err)
        assert line.startswith("warning: ")
        (line,) = lines_with("nothing is fine-tuned", printed.err)
        assert line.startswith("warning: OFMS-FT: warm_up = ")
        assert "similarly in 1 more" in line, "of the other seed"
        assert len(lines_with(DROPPED, printed.err)) == 1
    cells = [json.loads(path.read_text()) for path in (out / "compare-own/cells").glob("*.json")]
    assert len(cells) == 4
    assert all(any("losses reach" in line for line in cell["warnings"]) for cell in cells)
    assert "similarly in 1 more" in (out / "compare-own/report.html").read_text(), "not of the first seed alone"


def test_advice_warns_about_all_its_simulations(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--policy", "ofms-ft", "--set", "loss_bound=clip", "--out", tmp_path / "advice.png", "-q", "--json")
    assert run("advise", experiment, *arguments) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out.splitlines()[-1])["options"]) > 4
    for words in ("losses reach their bound (clip) on", "nothing is fine-tuned", DROPPED):
        assert len(lines_with(words, printed.err)) == 1


def test_cells_of_another_version_are_counted(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("compare", experiment, "--policy", "mab", "--seeds", "3", "--out", tmp_path / "results", "-q")
    assert run(*arguments) == 0
    assert "other versions" not in capsys.readouterr().err
    first, second, _ = sorted((tmp_path / "results/compare-own/cells").glob("*.json"))
    for path in (first, second):
        path.write_text(path.read_text().replace(f'"version":"{ofms.__version__}"', '"version":"0.0.9"'))
    assert run(*arguments) == 0
    (line,) = lines_with("other versions", capsys.readouterr().err)
    assert line.startswith("warning: of 3 cells in ")
    assert f"2 of 0.0.9 were run by other versions than {ofms.__version__}" in line
