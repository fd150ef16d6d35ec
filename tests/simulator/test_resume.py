"""A run that was stopped goes on to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import ofms
from ofms.cli import _main
from ofms.core.draws import Draws
from ofms.core.states import flatten, unflatten
from ofms.policies import MODULES
from ofms.policies.session import open_sessions
from ofms.runs import interrupt, observers
from ofms.runs.checkpoint import Checkpoints, Inputs
from ofms.runs.interrupt import RunInterrupted, StopRequest
from ofms.runs.units import human_bytes
from tests.problems import fleet_of, image_problem, policy_of, regression_problem


class StopAfter(StopRequest):
    """Ctrl-C after some looks at it."""

    looks = 0

    def __enter__(self) -> StopAfter:
        self.left = StopAfter.looks
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property  # type: ignore[override]
    def wanted(self) -> bool:
        self.left -= 1
        return self.left < 0

    @wanted.setter
    def wanted(self, value: bool) -> None:
        pass


def files(folder: Path) -> dict[str, object]:
    """What a run left, without what may differ: its time and its own path."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"], summary["client_seconds"], summary["folder"]
    arrays = {}
    for name in ("clients.npz", "history.npz"):
        with np.load(folder / name) as file:
            arrays |= {f"{name} {key}": file[key].tobytes() for key in file}
    return {"summary": summary, "metrics": (folder / "metrics.jsonl").read_bytes(), **arrays}


@pytest.mark.parametrize("policy", list(MODULES))
@pytest.mark.parametrize("problem", [regression_problem, image_problem])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    policy: str, problem: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dictionary, stream = problem()  # type: ignore[operator]
    options = {"models": dictionary, "stream": stream}
    # Fine-tuning from the start, so that there is something to lose.
    settings = {"budget": "3", "bandwidth": "60%", "interval": 2, "seed": 7} | (
        {"warm_up": 2} if policy not in ("mab", "non-fed-oms", "budgeted-experts") else {}
    )
    ofms.simulate(policy=policy, out=tmp_path / "whole", **options, **settings)
    monkeypatch.setattr(observers, "StopRequest", StopAfter)
    monkeypatch.setattr(StopAfter, "looks", 3)
    with pytest.raises(RunInterrupted, match=r"stopped after round 8 of \d+; continue with: ofms run --resume"):
        ofms.simulate(policy=policy, out=tmp_path / "parts", **options, **settings)
    monkeypatch.setattr(StopAfter, "looks", 1)
    with pytest.raises(RunInterrupted, match="stopped after round 12"):
        ofms.simulate(resume=tmp_path / "parts", **options) if stream.rounds > 12 else _stop_again()
    monkeypatch.setattr(StopAfter, "looks", 10**6)
    ofms.simulate(resume=tmp_path / "parts", **options)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert not (tmp_path / "parts" / "checkpoint").exists(), "a finished run needs none"


def _stop_again() -> None:
    raise RunInterrupted("stopped after round 12")


def test_states_survive_being_taken_apart() -> None:
    fleet = fleet_of([4, 3, 2], [8, 9], rounds=5)
    for name in MODULES:
        policy = policy_of(name, fleet)
        clients, _ = open_sessions(policy, fleet)
        state = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
        state, _ = clients.request(state, Draws(1, 0))
        arrays, values = flatten(state)
        json.dumps(values)
        fresh = clients.join(fleet.catalogue, fleet.budgets, np.arange(2))
        again = unflatten(fresh, arrays, values)
        expected, found = (clients.request(each, Draws(1, 1))[1] for each in (state, again))
        assert found.wanted.tolist() == expected.wanted.tolist()
        some = next(iter(arrays))
        with pytest.raises((ValueError, KeyError)):
            unflatten(fresh, arrays | {some: np.zeros((9, 9))}, values)


def test_a_process_that_is_killed_goes_on(tmp_path: Path) -> None:
    """kill -9 in the middle, then --resume: the same figures as without it."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "ofms", "run", "digits", "--rounds", "400", "--clients", "6"]
    subprocess.run([*command, "--out", tmp_path / "whole"], env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        [*command, "--checkpoint", "0", "--out", tmp_path / "parts"], env=environment, stderr=subprocess.DEVNULL
    )
    latest = tmp_path / "parts" / "checkpoint" / "latest.json"
    deadline = time.monotonic() + 120
    while not latest.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "parts" / "summary.json").exists(), "it was killed in the middle"
    resume = [sys.executable, "-m", "ofms", "run", "--resume", tmp_path / "parts"]
    subprocess.run(resume, env=environment, check=True, capture_output=True)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_ctrl_c_stops_at_the_end_of_a_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "ofms", "run", "digits", "--rounds", "20000", "--clients", "10"]
    process = subprocess.Popen(
        [*command, "--out", tmp_path / "run"], env=environment, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    last = error.strip().splitlines()[-1]
    assert last.startswith("ofms: stopped after round ")
    assert f"ofms run --resume {tmp_path / 'run'}" in last
    assert "Traceback" not in error
    rounds = int(last.split()[4])
    assert len(metrics.read_bytes().splitlines()) == rounds
    assert json.loads((tmp_path / "run" / "checkpoint" / "latest.json").read_text())["rounds"] == rounds


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interrupted run of a stream and a dictionary of one's own."""
    dictionary, stream = regression_problem()
    with monkeypatch.context() as patch:
        patch.setattr(observers, "StopRequest", StopAfter)
        patch.setattr(StopAfter, "looks", 5)
        with pytest.raises(RunInterrupted):
            ofms.simulate(models=dictionary, stream=stream, budget="3", bandwidth="60%", out=tmp_path / "run")
    return tmp_path / "run"


def test_what_cannot_go_on_is_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, stream = regression_problem()

    def resume(**options: object) -> None:
        ofms.simulate(resume=stopped, **({"models": dictionary, "stream": stream} | options))  # type: ignore[arg-type]

    with pytest.raises(ofms.InvalidInput, match="leave out everything else"):
        resume(budget="4")
    with pytest.raises(ofms.InvalidInput, match="leave out everything else"):
        resume(policy="mab")
    with pytest.raises(ofms.InvalidInput, match="a stream of your own"):
        ofms.simulate(resume=stopped, models=dictionary)
    other = ofms.Dictionary.from_modules(
        {model.name: torch.nn.Sequential(torch.nn.Linear(3, 1)) for model in dictionary.models}, task="regression"
    )
    with pytest.raises(ofms.InvalidInput, match="it was run with another dictionary"):
        resume(models=other)
    with pytest.raises(ofms.InvalidInput, match="it was run with another stream"):
        resume(stream=ofms.Stream(stream.x + 1, stream.y, stream.task))
    lock = (stopped / ".lock").open("wb")
    fcntl = pytest.importorskip("fcntl")
    fcntl.flock(lock, fcntl.LOCK_EX)
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
    resume()
    with pytest.raises(ofms.InvalidInput, match="it is finished"):
        resume()


def test_the_bytes_shown_are_those_of_the_whole_run(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dictionary, stream = regression_problem()
    result = ofms.simulate(resume=stopped, models=dictionary, stream=stream, progress=True)
    down, up = (human_bytes(int(result.clients[key].sum())) for key in ("down", "up"))
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"round {stream.rounds} of {stream.rounds}, 0 s left" in last
    assert last.endswith(f"down {down}, up {up}")


@pytest.mark.parametrize("policy", ["ofms-ft", "mab", "perfedavg"])
def test_a_run_client_by_client_goes_on_as_one(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, stream = regression_problem()
    options = {"models": dictionary, "stream": stream}
    settings = {"budget": "3", "bandwidth": "60%", "policy": policy, "loopback": True}
    settings |= {} if policy == "mab" else {"warm_up": 2}
    ofms.simulate(out=tmp_path / "whole", **settings, **options)
    with monkeypatch.context() as patch:
        patch.setattr(observers, "StopRequest", StopAfter)
        patch.setattr(StopAfter, "looks", 7)
        with pytest.raises(RunInterrupted, match="continue with"):
            ofms.simulate(out=tmp_path / "parts", **settings, **options)
    resumed = ofms.simulate(resume=tmp_path / "parts", **options)
    assert resumed.config.loopback
    assert "seconds" in resumed.clients, "what only the loopback measures"
    whole, parts = files(tmp_path / "whole"), files(tmp_path / "parts")
    assert whole.pop("clients.npz seconds") != parts.pop("clients.npz seconds")
    assert parts == whole
    again = ofms.simulate(str(tmp_path / "parts" / "config.toml"), **options)
    assert again.score.tolist() == resumed.score.tolist()


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["run", "--resume", str(tmp_path)]) == 2
    assert "it is not a run's folder" in capsys.readouterr().err
    assert _main(["run", "digits", "--resume", str(tmp_path)]) == 2
    assert "leave out digits" in capsys.readouterr().err


def test_checkpoints_take_a_fiftieth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("ofms.runs.checkpoint.time.perf_counter", lambda: now[0])
    checkpoints = Checkpoints(tmp_path, 10.0, {}, Inputs("dictionary", "stream"))
    now[0] = 9.9
    assert not checkpoints.due
    now[0] = 10.0
    assert checkpoints.due
    checkpoints._last, checkpoints._cost = 10.0, 1.0
    now[0] = 59.0
    assert not checkpoints.due, "one second's writing waits for fifty"
    now[0] = 60.0
    assert checkpoints.due


def test_the_same_request_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert stop.wanted
        monkeypatch.setattr(interrupt, "_REPEAT_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
