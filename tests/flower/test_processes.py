"""Ending processes with all their descendants, and no others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import ofms
from ofms.flower.processes import Process, descendants, free_port, keep_node
from ofms.storage.locks import FolderLock

FAMILY = """
import subprocess, sys, time
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print(child.pid, flush=True)
time.sleep({seconds})
"""


def child_of(process: Process, log: Path) -> int:
    until = time.monotonic() + 300
    while not log.exists() or not log.read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.05)
    return int(log.read_text().split()[0])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_children_of_a_process_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ofms.flower.processes._STOP_SECONDS", 0.5)
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", FAMILY.format(seconds=600)], tmp_path / "home", log)
    child = child_of(process, log)
    assert child in descendants(process.pid)
    process.stop()
    assert process.ended
    assert not is_running(child), "although it ignores SIGTERM"


def test_a_child_that_outlives_its_killed_parent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ofms.flower.processes._STOP_SECONDS", 0.5)
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", FAMILY.format(seconds=600)], tmp_path / "home", log)
    child = child_of(process, log)
    os.kill(process.pid, 9)
    while is_running(process.pid):  # so that the first look at it is after its end
        time.sleep(0.05)
    assert process.ended
    assert is_running(child)
    process.stop()
    assert not is_running(child)


def test_a_process_that_reuses_the_id_of_a_child_is_not_ended(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = Process([sys.executable, "-c", "pass"], tmp_path / "home", tmp_path / "log")
    former: Any = psutil.Process(stranger.pid)
    former._ident = (stranger.pid, former.create_time() - 100)
    process._family.add(former)
    process.stop()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_output_is_read_after_the_process_ended(tmp_path: Path) -> None:
    code = "print('first', flush=True); print('the reason why', flush=True)"
    process = Process([sys.executable, "-c", code], tmp_path / "home", subprocess.PIPE)
    while not process.ended:
        time.sleep(0.05)
    assert list(process.lines()) == ["first", "the reason why"]
    process.stop()


def test_a_free_port_can_be_bound() -> None:
    for _ in range(20):
        with socket.socket() as server:
            server.bind(("127.0.0.1", free_port()))


def test_a_store_has_one_supernode_at_a_time(tmp_path: Path) -> None:
    """A second one would be rejected by the server, which knows its key, and restarted for ever."""
    lines: list[str] = []
    other = FolderLock(tmp_path)
    with pytest.raises(ofms.InvalidInput, match="another process is using it"):
        keep_node([sys.executable, "-c", "print('started')"], tmp_path, lines.append)
    assert lines == []
    other.close()
