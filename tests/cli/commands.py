"""Commands run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ofms.cli import _main

QUICK = ("--rounds", "12", "--clients", "6", "--budget", "3")


def run(*arguments: str | Path) -> int:
    return _main([str(argument) for argument in arguments])


def assert_refused(capsys: pytest.CaptureFixture[str], status: int, message: str) -> None:
    """The command ended with status 2 and one line that has this message."""
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.startswith("ofms: ")
    assert len(error.splitlines()) == 1, "one line"


def printed_record(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON record that `--json` prints last."""
    record: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return record
