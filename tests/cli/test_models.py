"""`ofms run --save-models` and `ofms models export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import QUICK, assert_refused, run


def test_an_export_that_is_not_possible_says_why(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, run("models", "export", tmp_path, tmp_path / "out"), "it is not a run's folder")
    assert run("run", "digits", "--models", models, *QUICK, "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert_refused(capsys, run("models", "export", tmp_path / "run", tmp_path / "out"), "run it again with --save-mod")
    (tmp_path / "run" / "summary.json").unlink()
    assert_refused(capsys, run("models", "export", tmp_path / "run", tmp_path / "out"), "it has no checkpoint yet")
    assert not (tmp_path / "out").exists()


def test_the_command_saves_and_exports_models(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run("run", "digits", "--models", models, *QUICK, "--out", out, "--save-models") == 0
    assert f"models: {out / 'models'}" in capsys.readouterr().out
    assert run("models", "export", out, tmp_path / "tuned") == 0
    assert "after 12 rounds" in capsys.readouterr().out
    assert run("check", tmp_path / "tuned") == 0
    assert run("run", "digits", "--models", tmp_path / "tuned", *QUICK, "--out", tmp_path / "again") == 0
