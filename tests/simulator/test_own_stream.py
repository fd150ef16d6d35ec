"""An experiment on the user's own table: unknown keys, clients by name, and rows that are dropped."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import ofms
from ofms.report.page import write_report
from ofms.runs.config import load_experiment
from tests.cli.commands import assert_refused, run
from tests.devices import problem

EXPERIMENT = """
summary = "own"
budget = "3"
bandwidth = "60%"
models = "models"

[stream]
file = "data.csv"
task = "regression"
client = "device"
target = "y"
"""
NAMES = ("fan", "pump", "valve")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A table of three clients, one of which has a row more than the others."""
    dictionary, stream = problem()
    dictionary.write(tmp_path / "models")
    rows = ["device,a,b,c,y"]
    for client, name in enumerate(NAMES):
        rows += [
            ",".join([name, *map(str, x), str(y)]) for x, y in zip(stream.x[client], stream.y[client], strict=True)
        ]
    (tmp_path / "data.csv").write_text("\n".join([*rows, "pump,0,0,0,0"]) + "\n")
    (tmp_path / "own.toml").write_text(EXPERIMENT)
    return tmp_path / "own.toml"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('feature = ["a"]', "stream.feature = ['a']: unknown key 'feature'; did you mean 'features'?"),
        ("colour = 1", "stream.colour = 1: unknown key 'colour'; use one of file, task, target, client, features"),
        ("[pretrainig]\nepochs = 1", "unknown key 'pretrainig'; did you mean 'pretraining'?"),
    ],
)
def test_an_unknown_key_is_refused_with_what_is_possible(
    experiment: Path, line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.write_text(EXPERIMENT + line + "\n")
    assert_refused(capsys, run("run", experiment, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


def test_clients_keep_their_names(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", experiment, "--out", tmp_path / "run", "--budget", "pump=2,*=3") == 0
    assert "warning: the stream drops 1 of 37 rows: clients have 12 (fan) to 13" in capsys.readouterr().err
    result = ofms.load(tmp_path / "run")
    assert result.client_names == list(NAMES)
    table = result.to_pandas()
    assert list(table.index) == list(NAMES)
    largest = int(ofms.Dictionary.read(tmp_path / "models").catalogue().storage.max())
    assert table["budget"].to_dict() == {"fan": 3 * largest, "pump": 2 * largest, "valve": 3 * largest}
    page = write_report([tmp_path / "run"]).read_text()
    assert '<option value="1">pump</option>' in page
    assert "the stream drops 1 of 37 rows" in page
    assert run("run", tmp_path / "run" / "config.toml", "--out", tmp_path / "again") == 0, "also from its configuration"
    assert np.array_equal(ofms.load(tmp_path / "again").clients["budget"], result.clients["budget"])


def test_budgets_by_name_in_the_experiment(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment.write_text(EXPERIMENT.replace('budget = "3"', 'budget = { pump = 2, "*" = "3" }'))
    assert load_experiment(str(experiment)).budget == {"pump": 2, "*": "3"}
    budgets = ofms.simulate(str(experiment)).clients["budget"]
    assert budgets[1] * 3 == budgets[0] * 2
    assert run("bounds", experiment) == 0
    capsys.readouterr()
    for budget, message in (
        ("pumps=2,*=3", "there is no client 'pumps'; clients are fan, pump, valve"),
        ("pump=2", "client 'fan' has none; add *=BUDGET"),
        ("pump=2,pump=3,*=3", "once for each client"),
    ):
        assert_refused(capsys, run("run", experiment, "--budget", budget), message)


def test_warnings_go_to_the_log_of_a_program_that_has_one(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the root logger too, which `logging.basicConfig` configures."""
    line = "the stream drops 1 of 37 rows"
    ofms.simulate(str(experiment))
    assert line in caplog.text
    caplog.clear()
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.warns(UserWarning, match=line):
        ofms.simulate(str(experiment))
    assert not caplog.records


def test_messages_name_the_client(experiment: Path, tmp_path: Path) -> None:
    _, stream = problem()
    named = ofms.Stream(stream.x.copy(), stream.y, stream.task, names=NAMES)
    named.x[1, 4, 0] = np.nan
    with pytest.raises(ofms.InvalidInput, match="see client pump, round 5"):
        named.require_sound()
    # The networks' outputs overflow.
    named.x[1, 4] = 3e38
    modules = {name: nn.Linear(3, 1) for name in "abc"}
    for module in modules.values():
        nn.init.constant_(module.weight, 10.0)
    large = ofms.Dictionary.from_modules(modules, task="regression")
    for loopback in (False, True):
        result = ofms.simulate(
            models=large, stream=named, budget="3", bandwidth="100%", loopback=loopback, warm_up=0, tune_every=1
        )
        assert "updates that were not finite were left out, of clients pump" in result.figures["warnings"]
