"""Commands and programs of the documentation can be run as they are written.

Every command line is parsed with the command's own options. Shell and Python blocks are run, in the order of their
page and in one folder, unless a comment above says why not: `<!-- not run: REASON -->`. `make docs` runs the notebooks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import pytest

import ofms
from ofms.cli import cli
from tests.documented import BLOCKS, PAGES, ROOT, Block

LANGUAGES = {"bash", "python", "text", "toml", "json", "yaml", "cell", "cell bash"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SHELL = [block for block in BLOCKS if block.language in ("bash", "cell bash")]
RUNNABLE = [block for block in BLOCKS if block.language in ("bash", "python") and not block.not_run]
# Of Flower, of the system, and of the shell.
OTHER_PROGRAMS = {
    *("flwr", "flower-superlink", "flower-supernode", "podman", "cffconvert", "python", "torchrun", "srun"),
    *("cd", "cp", "export", "for", "done", "grep", "head", "ls", "PYTHON=$python", "sed", "tail", "tar"),
}
# What makes a command of a page small enough for a test.
SMALLER = {
    "run": ["--clients", "4", "--rounds", "20"],
    "compare": ["--clients", "4", "--rounds", "20", "--seeds", "1"],
    "advise": ["--clients", "3", "--rounds", "20"],
}
# The command, with these options, in this environment; other installations must not happen.
OFMS = f"""\
#!{sys.executable}
import sys
from ofms.__main__ import main
sizes = {SMALLER}
if not any(word.endswith(".toml") for word in sys.argv):
    sys.argv += sizes.get(sys.argv[1], [])
sys.exit(main())
"""


def test_every_block_has_a_language_and_a_reason_is_given_only_for_code() -> None:
    directives = re.compile(r"\{[\w-]+\}.*")
    for block in BLOCKS:
        assert block.language in LANGUAGES or directives.fullmatch(block.language), f"{block}: name its language"
        assert not block.not_run or block.language in ("bash", "python"), f"{block}: not code"
    assert len(SHELL) > 25
    assert {block.page.name for block in RUNNABLE} >= {"README.md", "commands.md", "your-own.md", "deploy.md"}


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_command_lines_are_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in block.commands():
        for command in _piped(words):
            _require_valid(command)


def _piped(words: list[str]) -> list[list[str]]:
    """Commands of a pipe, without redirections."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            commands.append([])
        elif word == ">":
            break
        else:
            commands[-1].append(word)
    return commands


def _require_valid(words: list[str]) -> None:
    program, *arguments = words
    if program == "ofms":
        if arguments != ["--version"]:
            _parse(cli, "ofms", arguments)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert arguments[0] in targets, words
    elif program == "pip":
        for extra in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
            assert {*extra.split(",")} <= {*EXTRAS}, words
    elif program in ("python", "pytest") and arguments[0] != "-m":
        path = arguments[0].partition("::")[0]
        assert any((ROOT / folder / path).exists() for folder in ("", "examples/own_data")), words
    else:
        assert program in OTHER_PROGRAMS, f"{program}: a program that this test does not know"


def _parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parse a command line like the command does, without running it."""
    context = command.make_context(name, list(arguments), parent=parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        found, inner, rest = command.resolve_command(context, rest)
        assert inner is not None, arguments
        _parse(inner, str(found), rest, context)


def test_a_wrong_option_is_found() -> None:
    with pytest.raises(click.UsageError, match="--round"):
        _require_valid(["ofms", "run", "--round", "5"])
    with pytest.raises(click.UsageError, match="nothing"):
        _require_valid(["ofms", "deploy", "nothing"])


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in ("toml", "json")], ids=str)
def test_files_can_be_read(block: Block) -> None:
    (tomllib.loads if block.language == "toml" else json.loads)(block.text)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pages name: a run, dictionaries, the examples; and the commands on the path."""
    folder = tmp_path_factory.mktemp("pages")
    run = ofms.simulate("digits", clients=4, rounds=20, out=folder / "RUN", save_models=True)
    # A page adds the models of one to a fleet with those of another, and retires `small-net`.
    for folder_name, prefix in (("DIR", "new-"), ("DICTIONARY", ""), ("models", "")):
        names = ["small-net" if not index else model.name for index, model in enumerate(run.models.models)]
        models = [replace(model, name=prefix + name) for model, name in zip(run.models.models, names, strict=True)]
        replace(run.models, models=tuple(models)).write(folder / folder_name)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in (("ofms", OFMS), ("pip", "#!/bin/sh\nexit 0\n")):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(content)
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.page == page for block in RUNNABLE)], ids=lambda page: page.stem
)
def test_blocks_of_a_page_run(page: Path, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    shutil.copytree(prepared, folder)
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    # Shell completion is installed below the home folder.
    environment = os.environ | {"PATH": path, "HOME": str(tmp_path), "SHELL": "/bin/bash", "MPLBACKEND": "agg"}
    environment["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    for block in RUNNABLE:
        if block.page == page:
            shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
            text = block.text.replace("HOST:PORT", "localhost:9092")
            done = subprocess.run(
                [*shell, text], cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
            )
            assert done.returncode == 0, f"{block}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
