"""Warnings about runs whose figures say less than they seem to: in the table, the summary and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.cli import _main
from ofms.report.page import write_report
from ofms.runs.interrupt import RunInterrupted
from ofms.runs.warning_lines import run_warnings
from tests.problems import regression_problem
from tests.stopping import stop_after

DICTIONARY, STREAM = regression_problem(clients=6, rounds=20)
FIXED: dict[str, Any] = {"budget": "3", "bandwidth": "100%", "policy": "ofms-ft", "learning_rate": 0.5}


def run(out: Path | None = None, stream: ofms.Stream = STREAM, **given: Any) -> ofms.Result:
    values = FIXED | {"fine_tuning_rate": 0, "loss_bound": "raw"} | given
    return ofms.simulate(models=DICTIONARY, stream=stream, out=False if out is None else out, **values)


def scaled(factor: float) -> ofms.Stream:
    return ofms.Stream(STREAM.x, factor * STREAM.y, "regression")


def shown_everywhere(result: ofms.Result, words: str) -> None:
    """One line in the table, in the summary and on the page."""
    assert result.folder is not None
    lines = [line for line in result.table().splitlines() if line.startswith("warning: ")]
    assert len(lines) == 1
    assert words in lines[0]
    summary = json.loads((result.folder / "summary.json").read_text())
    assert [f"warning: {line}" for line in summary["warnings"]] == lines
    page = write_report([result.folder]).read_text()
    assert words in page
    assert words in ofms.load(result.folder).table()


def test_a_sound_run_has_none() -> None:
    result = run(loss_bound="clip", stream=scaled(0.1))
    assert result.figures["warnings"] == []
    assert "warning" not in result.table()


@pytest.mark.parametrize("bound", ["clip", "saturate"])
def test_losses_at_their_bound(bound: str, tmp_path: Path) -> None:
    result = run(tmp_path / "run", stream=scaled(30), loss_bound=bound)
    errors = result.history["score"].T  # The prediction is that of one model: its squared error is its loss.
    share = np.mean(errors >= (1 if bound == "clip" else np.log(100)))
    assert share > 0.5
    shown_everywhere(result, f"losses reach their bound ({bound}) on {100 * share:.0f} % of the samples")
    assert run(stream=scaled(30), loss_bound="raw").figures["warnings"] == []


def test_the_share_survives_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(stream=scaled(30), loss_bound="clip").figures["warnings"]
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        with pytest.raises(RunInterrupted):
            run(tmp_path / "run", stream=scaled(30), loss_bound="clip")
    again = ofms.simulate(models=DICTIONARY, stream=scaled(30), resume=tmp_path / "run")
    assert again.figures["warnings"] == expected


def test_a_horizon_within_the_warm_up(tmp_path: Path) -> None:
    result = run(tmp_path / "run", fine_tuning_rate=0.01, warm_up=20)
    shown_everywhere(result, "warm_up = 20, but the run has 20 rounds: nothing is fine-tuned")
    assert "the run has 1 round: nothing" in run(fine_tuning_rate=0.01, warm_up=20, rounds=1).figures["warnings"][0]
    assert run(fine_tuning_rate=0.0001, warm_up=19).figures["warnings"] == []


def test_a_horizon_within_the_first_exchange(tmp_path: Path) -> None:
    result = run(tmp_path / "run", fine_tuning_rate=0, interval=20)
    shown_everywhere(result, "interval = 20, but the run has 20 rounds: clients choose once")
    assert run(fine_tuning_rate=0, interval=19).figures["warnings"] == []
    once = run(fine_tuning_rate=0, interval=19, rounds=1)
    assert once.figures["warnings"] == []
    assert "6 clients × 1 round, seed" in repr(once)
    assert ", 6 clients, 1 round, seed" in str(once)


@pytest.mark.parametrize("loopback", [False, True])
def test_fine_tuning_that_makes_predictions_worse(loopback: bool, tmp_path: Path) -> None:
    """Steps that are too large, on targets that nothing predicts; with smaller ones, fine-tuning gains."""
    _, many = regression_problem(clients=24, rounds=20)
    y = np.random.default_rng(3).normal(size=many.y.shape).astype(np.float32)
    noise = ofms.Stream(many.x, y, "regression")
    given: dict[str, Any] = {"stream": noise, "server_step": "N", "warm_up": 0, "loopback": loopback}
    result = run(tmp_path / "run", fine_tuning_rate=0.04, **given)
    assert result.figures["mean"] > 1.2 * result.figures["frozen"]
    shown_everywhere(result, "fine-tuning makes predictions worse")
    gain = run(fine_tuning_rate=0.01, **given)
    assert gain.figures["mean"] < gain.figures["frozen"]
    assert gain.figures["warnings"] == []


def test_one_client_cannot_tell_a_loss_by_fine_tuning_from_noise() -> None:
    given: dict[str, Any] = {"metric": "mse", "rounds": 20, "loss_bound": "raw", "local": None, "saturated": 0.0}
    frozen, worse = np.array([0.5, 0.5]), np.array([0.5 + 4.6e-5, 0.5 + 4.7e-5])
    one: dict[str, Any] = {"score": worse[:1], "frozen_score": frozen[:1]}
    assert run_warnings(clients=one, **given) == []
    assert len(run_warnings(clients={"score": worse, "frozen_score": frozen}, **given)) == 1
    # Of two clients, the other was never in the fleet.
    away = {"score": np.array([worse[0], np.nan]), "frozen_score": frozen, "rounds": np.array([20, 0])}
    assert run_warnings(clients=away, **given) == []


def test_regrets_of_different_losses_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "raw", tmp_path / "raw2", tmp_path / "clip"]
    for folder, bound in zip(folders, ("raw", "raw", "clip"), strict=True):
        run(folder, loss_bound=bound, stream=scaled(0.1), seed=len(folder.name))
    words = "regrets are not comparable, because the losses are bounded differently (clip: clip; raw: raw, raw2)"
    assert _main(["report", *map(str, folders), "--out", str(tmp_path / "page.html")]) == 0
    assert f"warning: {words}\n" in capsys.readouterr().err
    assert words in (tmp_path / "page.html").read_text()
    assert _main(["report", *map(str, folders[:2]), "--out", str(tmp_path / "page.html")]) == 0
    assert "warning" not in capsys.readouterr().err
