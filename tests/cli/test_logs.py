"""What commands print besides their result: `-q`, `-v`, and Python's logging."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import ofms
from tests.cli.commands import QUICK, assert_refused, run
from tests.problems import regression_problem


def test_quiet_prints_the_result_alone(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", "digits", "--models", models, *QUICK)
    assert run(*arguments, "--out", tmp_path / "one") == 0
    normal = capsys.readouterr()
    assert "round 12 of 12" in normal.err
    assert "report: " in normal.out
    assert run(*arguments, "--out", tmp_path / "two", "-q") == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert "average regret" in quiet.out
    assert normal.out.startswith(quiet.out), "the table, and nothing after it"
    assert (tmp_path / "two" / "report.html").exists()


def test_verbose_says_what_happens_inside(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", "digits", "--models", models, *QUICK, "--out", tmp_path / "run", "--checkpoint", "0", "-v")
    assert run(*arguments) == 0
    error = capsys.readouterr().err
    assert f"ofms.runs.dictionaries: dictionary: {models}" in error
    assert "checkpoint after round" in error
    assert '"policy":"late-hedge"' in error, "the resolved configuration"
    assert_refused(capsys, run(*arguments, "-q"), "--quiet and --verbose exclude each other")
    assert not logging.getLogger("ofms").handlers, "a command leaves logging as it was"


def test_compare_is_quiet_too(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("compare", "digits", "--models", models, *QUICK, "--seeds", "1", "--policy", "mab", "-q")
    assert run(*arguments, "--out", tmp_path) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "MAB" in printed.out
    assert str(tmp_path) not in printed.out


def test_a_page_that_cannot_be_written_is_a_warning(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert run("run", "digits", "--models", models, *QUICK, "--out", tmp_path / "run", "-q") == 0
    assert capsys.readouterr().err == "warning: no report: it requires Jinja2: pip install 'ofms[experiments]'\n"


def test_python_sees_progress_in_its_log(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    dictionary, stream = regression_problem(rounds=4)
    arguments: dict[str, Any] = {
        "models": dictionary,
        "stream": stream,
        "budget": "3",
        "bandwidth": "60%",
        "progress": True,
    }
    ofms.simulate(**arguments)
    assert "round 4 of 4" in capsys.readouterr().err, "who asked for progress sees it without configuring logging"
    with caplog.at_level(logging.INFO, logger="ofms"):
        ofms.simulate(**arguments)
    assert "round 4 of 4" in caplog.text
    assert capsys.readouterr().err == ""
