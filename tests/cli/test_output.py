"""Standard output and error that are closed, full, or end early, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import QUICK

OFMS = [sys.executable, "-m", "ofms"]
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="it needs /dev/full")


def ended_pipe() -> int:
    """The descriptor of a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_pipe_that_ends() -> None:
    ended = subprocess.run([*OFMS, "list"], stdout=ended_pipe(), stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (141, b""), "as a shell reports it for other commands"


@needs_full
def test_full_streams() -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([*OFMS, "list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (1, "ofms: standard output: No space left on device\n")
        ended = subprocess.run([*OFMS, "nonsense"], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (2, "")


def test_closed_streams() -> None:
    for command, status in (("list >&-", 0), ("list >&- 2>&-", 0), ("nonsense 2>&-", 2), ("--version <&- >&- 2>&-", 0)):
        line = f"{sys.executable} -m ofms {command}"
        ended = subprocess.run(line, shell=True, capture_output=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (status, b"", b""), command


def test_a_closed_stream_is_not_the_next_file_that_is_opened(tmp_path: Path) -> None:
    code = """
import os, sys
from ofms.cli.output import Output
output = Output()
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(1, b"said"), os.write(2, b"said"), print("said"), os.write(descriptor, b"content")
sys.exit(output.finish(7 if descriptor > 2 else 1))
"""
    arguments = [sys.executable, "-c", code, str(tmp_path / "file")]
    ended = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *arguments], check=False)
    assert ended.returncode == 7
    assert (tmp_path / "file").read_bytes() == b"content"


def test_an_encoding_without_a_character() -> None:
    code = "from ofms.cli.output import Output; output = Output(); print('±'); raise SystemExit(output.finish(0))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert ended.stdout == b"?\n"


@needs_full
def test_a_run_is_completed_whatever_happens_to_its_output(models: Path, tmp_path: Path) -> None:
    command = [*OFMS, "run", "--models", str(models), *QUICK, "--out", str(tmp_path / "run")]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=ended_pipe(), stderr=full, check=False)
    assert ended.returncode == 141
    assert {"summary.json", "report.html"} <= {path.name for path in (tmp_path / "run").iterdir()}
