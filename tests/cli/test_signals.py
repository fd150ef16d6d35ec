"""Ctrl-C, SIGTERM and SIGHUP at any moment, also while modules are imported: one line, and nothing is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.repeated_tasks import TASKS, leftovers

# As some modules do while they are imported: the interruption is dropped, and something else fails.
REPLACED = """
import os, signal
from ofms import cli

def invoke(arguments):
    try:
        os.kill(os.getpid(), {number})
    except KeyboardInterrupt:
        pass
    raise AttributeError("half of a module")

cli._invoke = invoke
cli.main()
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start `ofms`; its first code has run, which handles signals. Before it, Python itself starts."""
    command = [sys.executable, "-m", "ofms", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while process.poll() is None and not _handles(process.pid, signal.SIGTERM) and time.monotonic() < deadline:
        time.sleep(0.001)
    return process


def _handles(pid: int, number: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def assert_interrupted(process: subprocess.Popen[str], number: int, seconds: float) -> None:
    """It ends in one line at a signal, unless it has ended before."""
    try:
        error = process.communicate(timeout=seconds)[1]
        assert process.returncode == 0
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        error = process.communicate(timeout=300)[1]
        assert process.returncode in (0, 128 + number), error
    said = [line for line in error.splitlines() if line.startswith("ofms: ")]
    assert "Traceback" not in error
    assert len(said) == (process.returncode != 0), error


@pytest.mark.parametrize("number", SIGNALS)
def test_while_modules_are_imported(number: int) -> None:
    for seconds in (0.0, 0.1):
        process = start("list")
        assert_interrupted(process, number, seconds)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_import_that_replaces_the_interruption(number: int) -> None:
    command = [sys.executable, "-c", REPLACED.format(number=int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (128 + number, "ofms: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_at_random_moments(seed: int, tmp_path: Path) -> None:
    moments = random.Random(seed)
    TASKS["run"].prepare(tmp_path)
    for _ in range(15):
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        own = str(tmp_path / "own.toml")
        arguments: list[str | Path] = moments.choice(
            [
                ["list"],
                ["run", own, "--out", out / "run"],
                ["pretrain", tmp_path / "small.toml", "--out", out / "models"],
                ["compare", own, "--policy", "mab", "--seeds", "1", "--out", out],
            ]
        )
        assert_interrupted(start(*arguments), moments.choice(SIGNALS), moments.uniform(0, 6))
        assert not [name for name in leftovers(out) if name.endswith(".part")]
        assert not list(out.rglob(".lock"))


def test_a_process_that_ignores_hangups_goes_on() -> None:
    command = f"trap '' HUP; exec {sys.executable} -m ofms list"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    for _ in range(20):
        time.sleep(0.02)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGHUP)
    assert process.communicate(timeout=300)[0].startswith("experiments:")
    assert process.returncode == 0
