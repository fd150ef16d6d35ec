"""A resumed run gives the same bits as one that was never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

import ofms
from ofms.cli import _main
from ofms.compute.momentum import Momentum
from ofms.policies import MODULES
from ofms.policies.registry import setting_names
from ofms.runs.folder import RunFolder
from ofms.runs.interrupt import RunInterrupted
from ofms.runs.units import human_bytes
from ofms.storage.locks import FolderLock
from tests.problems import image_problem, regression_problem
from tests.stopping import stop_after


def files(folder: Path) -> dict[str, object]:
    """The files of a run byte by byte, without its times and its path."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"], summary["client_seconds"], summary["folder"]
    with np.load(folder / "clients.npz") as file:
        arrays = {key: file[key].tobytes() for key in file if key != "seconds"}
    names = ("metrics.jsonl", "history.npz", "config.toml")
    return {"summary": summary, "clients": arrays} | {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("policy", list(MODULES))
@pytest.mark.parametrize("problem", [regression_problem, image_problem])
def test_a_run_stopped_twice_gives_the_same_bits(
    policy: str, problem: Callable[..., tuple[ofms.Dictionary, ofms.Stream]], tmp_path: Path
) -> None:
    dictionary, stream = problem(rounds=16)
    inputs: dict[str, Any] = {"models": dictionary, "stream": stream, "report": False}
    options: dict[str, Any] = {"budget": "3", "bandwidth": "60%", "interval": 2, "seed": 7, "policy": policy}
    if "warm_up" in setting_names(policy):
        # Fine-tuning from the start, so that a checkpoint has updated parameters.
        options["warm_up"] = 2
    ofms.simulate(out=tmp_path / "whole", **inputs, **options)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(RunInterrupted, match="stopped after round 8 of 16; continue with: ofms run --resume"):
            ofms.simulate(out=tmp_path / "parts", **inputs, **options)
        stop_after(patch, 2)
        with pytest.raises(RunInterrupted, match="stopped after round 12 of 16"):
            ofms.simulate(resume=tmp_path / "parts", **inputs)
    ofms.simulate(resume=tmp_path / "parts", **inputs)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert not (tmp_path / "parts" / "checkpoint").exists(), "a finished run needs none"


def test_a_resumed_server_keeps_its_momentum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the steps after the checkpoint are others: the run must not be the same by chance."""
    dictionary, stream = regression_problem(rounds=24)
    inputs: dict[str, Any] = {"models": dictionary, "stream": stream}
    options: dict[str, Any] = {"budget": "3", "bandwidth": "100%", "policy": "late-hedge", "momentum": 0.9}
    options |= {"window": 8, "warm_up": 2, "tune_every": 1, "control_every": 0}
    ofms.simulate(out=tmp_path / "whole", **inputs, **options)

    def resumed(name: str) -> dict[str, object]:
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, 12)
            with pytest.raises(RunInterrupted):
                ofms.simulate(out=tmp_path / name, **inputs, **options)
        state = safetensors.numpy.load_file(next((tmp_path / name / "checkpoint").glob("*.safetensors")))
        momentum = [array for key, array in state.items() if key.startswith("simulation.momentum.")]
        assert any(array.any() for array in momentum)
        ofms.simulate(resume=tmp_path / name, **inputs)
        return files(tmp_path / name)

    assert resumed("parts") == files(tmp_path / "whole")
    monkeypatch.setattr(Momentum, "load_arrays", lambda *given: None)
    assert resumed("without momentum") != files(tmp_path / "whole"), "momentum matters"


@pytest.mark.parametrize("number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 15))])
def test_a_signal_stops_at_the_end_of_a_round_and_the_run_prints_how_to_resume(number: int, tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "ofms", "run", "digits", "--rounds", "20000", "--clients", "10"]
    process = subprocess.Popen(
        [*command, "--out", tmp_path / "run"], env=environment, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    last = error.strip().splitlines()[-1]
    assert last.startswith("ofms: stopped after round ")
    assert f"ofms run --resume {tmp_path / 'run'}" in last
    assert "Traceback" not in error
    rounds = int(last.split()[4])
    assert len(metrics.read_bytes().splitlines()) == rounds
    assert json.loads((tmp_path / "run" / "checkpoint" / "latest.json").read_text())["rounds"] == rounds


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interrupted run of the user's own stream and dictionary."""
    dictionary, stream = regression_problem()
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(RunInterrupted):
            ofms.simulate(models=dictionary, stream=stream, budget="3", bandwidth="60%", out=tmp_path / "run")
    return tmp_path / "run"


def test_a_run_that_cannot_be_resumed_is_refused(stopped: Path) -> None:
    dictionary, stream = regression_problem()

    def resume(**options: Any) -> None:
        inputs: dict[str, Any] = {"models": dictionary, "stream": stream}
        ofms.simulate(resume=stopped, **inputs | options)

    with pytest.raises(ofms.InvalidInput, match="leave out everything else"):
        resume(budget="4")
    with pytest.raises(ofms.InvalidInput, match="leave out everything else"):
        resume(policy="mab")
    with pytest.raises(ofms.InvalidInput, match="leave out everything else"):
        resume(device="cpu")
    with pytest.raises(ofms.InvalidInput, match="a stream of your own"):
        ofms.simulate(resume=stopped, models=dictionary)
    other = ofms.Dictionary.from_modules(
        {model.name: torch.nn.Sequential(torch.nn.Linear(3, 1)) for model in dictionary.models}, task="regression"
    )
    with pytest.raises(ofms.InvalidInput, match="it was run with another dictionary"):
        resume(models=other)
    with pytest.raises(ofms.InvalidInput, match="it was run with another stream"):
        resume(stream=ofms.Stream(stream.x + 1, stream.y, stream.task))
    lock = FolderLock(stopped)
    with pytest.raises(ofms.InvalidInput, match="another process is using it"):
        resume()
    lock.close()

    latest = stopped / "checkpoint" / "latest.json"
    content = latest.read_text()
    latest.write_text(content.replace(ofms.__version__, "0.0.1"))
    with pytest.raises(ofms.InvalidInput, match=r"written by ofms 0\.0\.1"):
        resume()
    latest.write_text(content[:40])
    with pytest.raises(ofms.InvalidInput, match="its checkpoint is damaged"):
        resume()
    latest.write_text(content)
    state = next((stopped / "checkpoint").glob("*.safetensors"))
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ofms.InvalidInput, match="its checkpoint is damaged"):
        resume()
    state.write_bytes(whole)
    metrics = stopped / "metrics.jsonl"
    lines = metrics.read_bytes()
    metrics.write_bytes(lines[: len(lines) // 2])
    with pytest.raises(ofms.InvalidInput, match=r"metrics\.jsonl"):
        resume()
    metrics.write_bytes(lines)
    config = stopped / "config.toml"
    values = config.read_bytes()
    config.write_bytes(b"clients = 6\nrounds = = 3\n")
    message = r"its config\.toml is damaged \(not valid TOML: Invalid value \(at line 2, .*\); start a new run"
    with pytest.raises(ofms.InvalidInput, match=message):
        resume()
    config.write_bytes(values)
    resume()
    with pytest.raises(ofms.InvalidInput, match="it is finished"):
        resume()
    (stopped / "report.html").unlink()
    with pytest.raises(ofms.InvalidInput, match=f"write its page with: ofms report {stopped}$"):
        resume()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('budget = "3"', 'budget = "4"', "budget = 4: the run began with 3; set it back in .*config.toml"),
        ("seed = 0", "seed = 1", "seed = 1: the run began with 0"),
        ('dtype = "float32"', 'dtype = "float32"\ndevice = "cuda"', "device = cuda: the run began"),
        ("clients = 6", "clients = 5", "clients = 5: the run began with 6"),
        ("rounds = 20", "rounds = 10", "rounds = 10: the run began with 20"),
        ("hindsight = true", "hindsight = false", "hindsight = False: the run began with True"),
        ("history = 10", "history = 2", "history = 2: the run began with 10"),
        ("window = 50", "window = 7", "settings.window = 7: the run began with 50"),
        ("    16,\n", "    8,\n", r"settings.memories = \[0, 8, 4\]: the run began with \[0, 16, 4\]"),
        ('policy = "late-hedge"', 'policy = "mab"', "policy = mab: the run began with late-hedge"),
    ],
)
def test_an_edited_configuration_is_refused_by_field(before: str, after: str, message: str, stopped: Path) -> None:
    dictionary, stream = regression_problem()
    config = stopped / "config.toml"
    content = config.read_text()
    assert content.count(before) == 1
    config.write_text(content.replace(before, after))
    kept = files_in(stopped)
    with pytest.raises(ofms.InvalidInput, match=message):
        ofms.simulate(resume=stopped, models=dictionary, stream=stream)
    assert files_in(stopped) == kept, "nothing is written"
    config.write_text(content)
    ofms.simulate(resume=stopped, models=dictionary, stream=stream)
    assert config.read_text() == content


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_progress_of_a_resumed_run_counts_the_bytes_of_the_whole_run(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dictionary, stream = regression_problem()
    result = ofms.simulate(resume=stopped, models=dictionary, stream=stream, progress=True)
    down, up = (human_bytes(int(result.clients[key].sum())) for key in ("down", "up"))
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"round {stream.rounds} of {stream.rounds}, 0 s left" in last
    assert last.endswith(f"down {down}, up {up}")


@pytest.mark.parametrize("policy", ["ofms-ft", "mab", "perfedavg", "late-hedge"])
def test_a_loopback_run_can_be_resumed(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, stream = regression_problem()
    options: dict[str, Any] = {"models": dictionary, "stream": stream}
    settings: dict[str, Any] = {"budget": "3", "bandwidth": "60%", "policy": policy, "loopback": True}
    settings |= {} if policy == "mab" else {"warm_up": 2}
    ofms.simulate(out=tmp_path / "whole", **settings, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, 8)
        with pytest.raises(RunInterrupted, match="continue with"):
            ofms.simulate(out=tmp_path / "parts", **settings, **options)
    resumed = ofms.simulate(resume=tmp_path / "parts", **options)
    assert resumed.config.loopback
    assert "seconds" in resumed.clients, "measured by the loopback alone"
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    again = ofms.simulate(str(tmp_path / "parts" / "config.toml"), **options)
    assert again.score.tolist() == resumed.score.tolist()


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["run", "--resume", str(tmp_path)]) == 2
    assert "it is not a run's folder" in capsys.readouterr().err
    assert _main(["run", "digits", "--resume", str(tmp_path)]) == 2
    assert "leave out digits" in capsys.readouterr().err


def test_of_two_runs_into_one_folder_one_is_refused(tmp_path: Path) -> None:
    dictionary, stream = regression_problem()
    options: dict[str, Any] = {"models": dictionary, "stream": stream, "budget": "3", "bandwidth": "60%"}
    outcomes: list[object] = []

    def run(seed: int) -> None:
        try:
            outcomes.append(ofms.simulate(out=tmp_path / "run", seed=seed, **options).mean)
        except ofms.InvalidInput as error:
            outcomes.append(error.remedy)

    threads = [threading.Thread(target=run, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    means = [each for each in outcomes if isinstance(each, float)]
    assert means == [ofms.load(tmp_path / "run").mean], "one run, and it is whole"
    refusals = [each for each in outcomes if not isinstance(each, float)]
    assert all("already exists" in str(each) or "another process is using it" in str(each) for each in refusals)


def test_a_run_that_another_process_finished_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    dictionary, stream = regression_problem()
    result = ofms.simulate(models=dictionary, stream=stream, budget="3", bandwidth="60%", out=tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(ofms.InvalidInput, match="it already exists"):
        RunFolder(tmp_path / "run", result.config)
    with pytest.raises(ofms.InvalidInput, match=r"it is finished; its figures are in summary\.json$"):
        RunFolder(tmp_path / "run", result.config, resumed=True)
    assert files(tmp_path / "run") == before
    assert not (tmp_path / "run" / ".lock").exists()
