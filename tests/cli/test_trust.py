"""Code that a file names runs only if its package is trusted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import QUICK, assert_refused, run


def test_a_dictionary_that_names_a_command_runs_nothing(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touched = models.parent / "touched"
    index = json.loads((models / "dictionary.json").read_text())
    index["models"][0] |= {"architecture": "os:system", "options": {"command": f"touch {touched}"}}
    (models / "dictionary.json").write_text(json.dumps(index))
    assert_refused(capsys, run("check", models), "add --trust os")
    assert not touched.exists()


def test_own_code_runs_only_if_its_package_is_trusted(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--trust` of every command that reads a dictionary; without it nothing of the package is imported."""
    (tmp_path / "pump_models.py").write_text(
        "import pathlib\nfrom ofms.models.zoo import mlp\n"
        f"pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
        "def network(**options):\n    return mlp(**options)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    index = models / "dictionary.json"
    index.write_text(index.read_text().replace('"mlp"', '"pump_models:network"'))
    commands: list[tuple[str | Path, ...]] = [
        ("check", models),
        ("bounds", "--models", models, *QUICK),
        ("run", "--models", models, *QUICK, "--out", tmp_path / "run"),
        ("compare", "digits", "--policy", "mab", "--seeds", "1", "--models", models, *QUICK),
    ]
    for arguments in commands:
        assert_refused(capsys, run(*arguments), "add --trust pump_models")
        assert not (tmp_path / "imported").exists()
        assert not (tmp_path / "run").exists()
    for arguments in commands:
        assert run(*arguments, "--trust", "pump_models") == 0, arguments[0]
    assert (tmp_path / "imported").exists()


def test_no_file_of_the_current_folder_replaces_an_installed_module(models: Path, tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    for command in ([str(Path(sys.executable).parent / "ofms")], [sys.executable, "-m", "ofms"]):
        finished = subprocess.run([*command, "check", models], cwd=tmp_path, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
    assert not (tmp_path / "ran").exists()
