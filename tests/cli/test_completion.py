"""Shell completion: installed by one line, and it knows names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from ofms.cli import cli
from tests.cli.commands import assert_refused, run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_once(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for _ in range(2):
        assert run("completion", "--install") == 0
    assert "open a new terminal" in capsys.readouterr().out
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    scripts = [path for path in written if "_OFMS_COMPLETE" in path.read_text()]
    assert len(scripts) == 1
    for path in written:
        assert path in scripts or path.read_text().count(str(scripts[0])) == 1
    assert run("completion", shell) == 0
    assert capsys.readouterr().out == scripts[0].read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_settings_of_a_shell_in_another_encoding_are_kept(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings, content = tmp_path / f".{shell}rc", "# Größe\nalias ll='ls -l'".encode("latin-1")
    settings.write_bytes(content)
    for _ in range(2):
        assert run("completion", shell, "--install") == 0
    lines = settings.read_bytes().splitlines()
    assert lines[:2] == content.splitlines()
    assert len(lines) == 3


def test_the_script_of_zsh_starts_the_completion_system(capsys: pytest.CaptureFixture[str]) -> None:
    """A .zshrc without `compinit` would print: command not found: compdef."""
    assert run("completion", "zsh") == 0
    script = capsys.readouterr().out
    start, register = (
        script.index("autoload -Uz compinit && compinit"),
        script.index("    compdef _ofms_completion ofms"),
    )
    assert start < register
    if zsh := shutil.which("zsh"):
        ended = subprocess.run([zsh, "-f", "-c", script + "\necho $_comps[ofms]"], capture_output=True, text=True)
        assert ended.stdout.strip() == "_ofms_completion", ended.stderr


def test_a_shell_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert_refused(capsys, run("completion", "--install"), "shell = tcsh: name one of bash, zsh, fish")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ru", {"run"}),
        ("run dig", {"digits"}),
        ("run --policy late", {"late-hedge"}),
        ("run --preset pub", {"published"}),
        ("list --settings ofms", {"ofms-ft"}),
        ("run --save", {"--save-models"}),
        ("run digits --policy mab --set expl", {"exploration="}),
        ("compare --policy mab --policy ofms-ft --set w", {"warm_up=", "window="}),
    ],
)
def test_completion_knows_names(words: str, expected: set[str]) -> None:
    *before, incomplete = words.split()
    found = BashComplete(cli, {}, "ofms", "_OFMS_COMPLETE").get_completions(before, incomplete)
    assert {item.value for item in found} == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="it needs bash")
def test_the_script_works_in_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", "bash") == 0
    command = tmp_path / "ofms"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ofms "$@"\n')
    command.chmod(0o755)
    code = 'COMP_WORDS=(ofms run dig); COMP_CWORD=2; _ofms_completion ofms; echo "${COMPREPLY[@]}"'
    path = f'PATH="{tmp_path}:$PATH"'
    script = f"{path}\n{capsys.readouterr().out}\n{code}\n"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert ended.stdout.strip() == "digits", ended.stderr
