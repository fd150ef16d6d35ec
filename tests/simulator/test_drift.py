"""Runs on streams that drift: their figures against the losses of every round, resumed, stored, and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ofms
from ofms.cli import _main
from ofms.core.errors import InvalidInput
from ofms.data.stream import Stream
from ofms.report.page import write_report
from ofms.runs import observers
from ofms.runs.interrupt import RunInterrupted, StopRequest
from tests.problems import regression_problem

CHANGES = (8, 20)


def constants() -> tuple[ofms.Dictionary, Stream]:
    """Models that predict 0, 1 and 0.5; targets of client 0 are 0, then 1, then 0 (client 1: the opposite)."""
    modules = {}
    for value in (0.0, 1.0, 0.5):
        modules[str(value)] = nn.Linear(1, 1)
        with torch.no_grad():
            modules[str(value)].weight.zero_()
            modules[str(value)].bias.fill_(value)
    y = np.zeros((2, 30), dtype=np.float32)
    y[0, 8:20] = 1
    y[1] = 1 - y[0]
    stream = Stream(np.ones((2, 30, 1), dtype=np.float32), y, "regression", CHANGES)
    return ofms.Dictionary.from_modules(modules, task="regression"), stream


def run(**more: Any) -> ofms.Result:
    dictionary, stream = constants()
    options: dict[str, Any] = {"policy": "fed-omd", "model": 0, "warm_up": 30}
    return ofms.simulate(models=dictionary, stream=stream, budget="2", bandwidth="100%", **(options | more))


def test_a_single_model_is_compared_with_the_best_of_each_phase() -> None:
    result = run()
    # The model that predicts 0 incurs 1 in rounds 8 to 19 of client 0 and in the other 18 of client 1.
    assert result.clients["dynamic_regret"].tolist() == [12, 18]
    assert result.regret() == pytest.approx([12 - 7.5, 18 - 7.5]), "against 0.5 throughout"
    assert result.clients["phase_best"].tolist() == [[0, 0, 0], [0, 0, 0]]
    # Client 0 recovers only after the second change, client 1 only after the first; phases of 12 and 10 rounds.
    assert result.clients["recovery"].tolist() == [[12, 0], [0, 10]]
    assert result.figures["dynamic_regret"] == 15
    assert result.figures["recovery"] == 5.5
    assert result.figures["changes"] == [8, 20]
    assert "rounds until recovered" in result.table()
    assert "the best model of each phase" in result.table()


def test_exchanges_may_span_a_change() -> None:
    for name in ("dynamic_regret", "recovery", "phase_best"):
        assert run(interval=7).clients[name].tolist() == run().clients[name].tolist()


def test_without_drift_or_hindsight_there_are_no_such_figures() -> None:
    dictionary, stream = constants()
    still = Stream(stream.x, stream.y, stream.task)
    result = ofms.simulate(models=dictionary, stream=still, budget="2", bandwidth="100%")
    assert not {"dynamic_regret", "recovery", "changes", "drift"} & result.figures.keys()
    assert "recovered" not in result.table()
    blind = run(hindsight=False)
    assert blind.figures["changes"] == [8, 20]
    assert not blind.drifts


@pytest.mark.parametrize("exchanges", [3, 11])
def test_a_resumed_run_has_the_same_figures(exchanges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, still = regression_problem(rounds=24)
    stream = Stream(still.x, still.y, still.task, (8, 16))
    inputs: dict[str, Any] = {"models": dictionary, "stream": stream}
    options: dict[str, Any] = {"budget": "3", "bandwidth": "60%", "interval": 2}
    whole = ofms.simulate(**inputs, **options)

    class Stopping(StopRequest):
        seen = 0

        def __getattribute__(self, name: str) -> Any:
            if name != "wanted":
                return super().__getattribute__(name)
            self.seen += 1
            return self.seen >= exchanges

    with monkeypatch.context() as patch:
        patch.setattr(observers, "StopRequest", Stopping)
        with pytest.raises(RunInterrupted):
            ofms.simulate(out=tmp_path / "run", **inputs, **options)
    with pytest.raises(InvalidInput, match="it was run with another stream"):
        ofms.simulate(resume=tmp_path / "run", models=dictionary, stream=still)
    resumed = ofms.simulate(resume=tmp_path / "run", **inputs)
    for name in ("dynamic_regret", "recovery", "phase_best"):
        assert resumed.clients[name].tolist() == whole.clients[name].tolist()
        assert ofms.load(tmp_path / "run").figures[name] == whole.figures[name]


def digits_models() -> ofms.Dictionary:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{index}": nn.Linear(64, 10) for index in range(3)}
    return ofms.Dictionary.from_modules(modules, task="classification")


def test_drift_is_part_of_the_configuration(tmp_path: Path) -> None:
    size: dict[str, Any] = {"models": digits_models(), "clients": 3, "rounds": 24, "budget": "2"}
    results = {drift: ofms.simulate("digits", drift=drift, **size) for drift in (None, "switch", "rotate")}
    assert results[None].config.drift is None
    assert "drift" not in results[None].config.to_toml()
    assert "drift" not in results[None].config.identity()
    assert results["switch"].config.identity()["drift"] == "switch"
    assert results["switch"].figures["drift"] == "switch"
    assert results["rotate"].figures["recovery"] is None, "a rotation never settles"
    assert len({result.figures["regret"] for result in results.values()}) == 3
    path = tmp_path / "own.toml"
    path.write_text(
        'summary = "drift"\ndataset = "digits"\nclients = 3\nrounds = 24\nbudget = "2"\nbandwidth = "50%"\n'
        'drift = "switch"\n'
    )
    own = ofms.simulate(str(path), models=size["models"], out=tmp_path / "run")
    assert own.score.tolist() == results["switch"].score.tolist()
    again = ofms.simulate(str(tmp_path / "run" / "config.toml"), models=size["models"])
    assert again.clients["dynamic_regret"].tolist() == own.clients["dynamic_regret"].tolist()
    with pytest.raises(InvalidInput, match=r"drift = switch: give a stream that drifts"):
        run(drift="switch")


def test_the_command_line_and_the_page_show_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in ("ofms-ft", "mab"):
        size: dict[str, Any] = {"models": digits_models(), "clients": 3, "rounds": 24, "budget": "2", "history": 0}
        ofms.simulate("digits", policy=policy, drift="recurring", out=tmp_path / policy, **size)
    page = write_report([tmp_path / "ofms-ft", tmp_path / "mab"], tmp_path / "page.html").read_text()
    assert 'data-chart="drift"' in page
    assert "rounds until recovered" in page
    assert json.loads((tmp_path / "mab" / "summary.json").read_text())["changes"] == [6, 12, 18]
    assert _main(["run", "digits", "--drift", "sideways"]) == 2
    assert "drift = sideways: use one of switch" in capsys.readouterr().err
