"""Processes and all that they start: nothing stays, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ofms.flower.processes import Process, descendants, free_port

FAMILY = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf])
print(child.pid, flush=True)
time.sleep({seconds})
"""


def child_of(process: Process, log: Path) -> int:
    until = time.monotonic() + 20
    while not log.exists() or not log.read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.05)
    return int(log.read_text().split()[0])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_a_process_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ofms.flower.processes._STOP_SECONDS", 0.5)
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", FAMILY.format(seconds=600)], tmp_path / "home", log)
    child = child_of(process, log)
    assert child in descendants(process.pid)
    process.stop()
    assert process.ended
    assert not is_running(child), "even one that does not listen"


def test_a_child_that_outlives_a_process_that_was_killed_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ofms.flower.processes._STOP_SECONDS", 0.5)
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", FAMILY.format(seconds=600)], tmp_path / "home", log)
    child = child_of(process, log)
    assert not process.ended
    os.kill(process.pid, 9)
    while not process.ended:
        time.sleep(0.05)
    assert is_running(child)
    process.stop()
    assert not is_running(child)


def test_a_number_that_is_another_process_by_now_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = Process([sys.executable, "-c", "pass"], tmp_path / "home", tmp_path / "log")
    former = psutil.Process(stranger.pid)
    former._ident = (stranger.pid, former.create_time() - 100)
    process._family.add(former)
    process.stop()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_the_last_words_are_heard(tmp_path: Path) -> None:
    code = "print('first', flush=True); print('the reason why', flush=True)"
    process = Process([sys.executable, "-c", code], tmp_path / "home", subprocess.PIPE)
    time.sleep(1.0)
    assert list(process.lines()) == ["first", "the reason why"]
    process.stop()


def test_ports_are_free() -> None:
    assert len({free_port() for _ in range(20)}) > 1
