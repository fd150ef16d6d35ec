"""`ofms run` and `ofms pretrain`: output, files, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import QUICK, assert_refused, printed_record, run


def test_a_run_prints_a_table_and_json_and_leaves_a_folder(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    status = run(
        "run", "digits", "--policy", "ofms-ft", "--models", models, *QUICK, "--preset", "theory", "--seed", "3",
        "--set", "interval=5", "--out", out, "--json",
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert status == 0
    record = json.loads(printed.splitlines()[-1])
    expected = {"experiment": "digits", "policy": "ofms-ft", "preset": "theory", "seed": 3, "metric": "accuracy"}
    assert expected.items() <= record.items()
    assert (record["rounds"], record["clients"], record["interval"]) == (12, 6, 5)
    assert 0 <= record["mean"] <= 1
    assert record["regret"] <= record["bound"]
    assert "average regret" in printed

    assert {path.name for path in out.iterdir()} == {
        *("config.toml", "metrics.jsonl", "clients.npz", "history.npz", "summary.json", "report.html")
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 13))
    assert lines[-1]["mean"] == pytest.approx(record["mean"])
    assert sum(line["down"] for line in lines) == record["bytes_down"]
    with np.load(out / "clients.npz") as clients:
        assert clients["score"].mean() == pytest.approx(record["mean"])
        assert clients["regret"].mean() == pytest.approx(record["regret"])
        assert clients["most_held"].max() <= clients["budget"].max()
    with np.load(out / "history.npz") as history:
        assert history["score"].shape == (12, 6)
        assert history["score"].mean() == pytest.approx(record["mean"])
        assert history["round"].tolist() == [0, 5, 10]
        assert history["probability"].shape == (3, 6, 6)
        assert (history["prediction_weights"] <= history["held"]).all()
    assert tomllib.loads((out / "config.toml").read_text())["interval"] == 5
    assert json.loads((out / "summary.json").read_text())["mean"] == record["mean"]


@pytest.mark.parametrize("policy", ["ofms-ft", "mab", "fed-omd", "perfedavg"])
def test_loopback_and_simulator_agree(
    policy: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = []
    for name, extra in (("fast", ()), ("slow", ("--loopback",))):
        arguments = ("--models", models, *QUICK, "--policy", policy, "--out", tmp_path / name, "--json", *extra)
        assert run("run", *arguments, "--set", "warm_up=3" if policy != "mab" else "exploration=0.1") == 0
        records.append(printed_record(capsys))
    for key in ("mean", "std", "regret", "bytes_down", "bytes_up", "most_bytes_held"):
        assert records[0][key] == pytest.approx(records[1][key], rel=1e-5), key


def test_the_digits_dictionary_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert run("run", "--policy", "ofms-ft", "--rounds", "60", "--clients", "20", "--json") == 0
    record = printed_record(capsys)
    assert record["random_model"] < record["mean"] < record["best_in_hindsight"]
    (kept,) = (tmp_path / "cache" / "ofms" / "models").iterdir()
    assert len(list(kept.glob("*.safetensors"))) == 20
    assert run("pretrain", "digits") == 0
    assert "already holds a dictionary" in capsys.readouterr().out
    assert (tmp_path / record["folder"] / "summary.json").exists()


def test_a_run_is_repeated_from_its_configuration(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--policy", "fed-omd", "--seed", "3", "--set", "warm_up=2", "--set", "model=net1")
    assert run("run", "--models", models, *QUICK, *arguments, "--out", tmp_path / "one", "--json") == 0
    first = printed_record(capsys)
    assert run("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two", "--json") == 0
    second = printed_record(capsys)
    different = {key for key in first if first[key] != second[key]}
    assert different <= {"seconds", "folder"}
    assert first["revision"]
    status = run("run", tmp_path / "one" / "config.toml", "--policy", "mab", "--out", tmp_path / "three")
    assert_refused(capsys, status, "policy = mab: the run used fed-omd")


def test_fine_tuning_that_diverges_is_quarantined(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--set", "fine_tuning_rate=1e38", "--set", "warm_up=0", "--out", tmp_path / "run")
    assert run("run", "--policy", "ofms-ft", "--models", models, *QUICK, *arguments) == 0
    output = capsys.readouterr()
    for printed in (output.out, output.err):
        assert "warning: quarantined because their updates were not finite: net" in printed
    assert "Traceback" not in output.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["quarantined"]
    assert np.isfinite(summary["mean"])


def test_progress_goes_to_standard_error(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ofms", "run", "--models", str(models), *QUICK]
    command += ["--out", str(tmp_path / "run"), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1])["rounds"] == 12
    assert "round 12 of 12" in ended.stderr
    assert "round 12 of 12" not in ended.stdout
