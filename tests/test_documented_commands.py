"""Commands and programs of the documentation can be run as they are written.

Every command line is parsed with the command's own options. Shell and Python blocks are run, in the order of their
page and in one folder, as comments above them say (`tests/documented.py`). `make docs` runs the notebooks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest

import ofms
from ofms.cli import cli
from ofms.coordinator import Coordinator
from ofms.data import load_dataset
from tests.documented import BLOCKS, PAGES, ROOT, Block, sentence_commands

LANGUAGES = {"bash", "python", "text", "toml", "json", "yaml", "cell", "cell bash"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SHELL = [block for block in BLOCKS if block.language in ("bash", "cell bash")]
RUNNABLE = [block for block in BLOCKS if block.language in ("bash", "python") and not block.not_run]
# Of Flower, of the system, and of the shell.
OTHER_PROGRAMS = {
    *("flwr", "flower-superlink", "flower-supernode", "podman", "cffconvert", "python", "torchrun", "srun"),
    *("bash", "cat", "cd", "cp", "export", "for", "done", "grep", "head", "ls", "PYTHON=$python", "sed", "tail"),
    *("tar", "tee"),
}
# What makes a command of a page small enough for a test.
SMALLER = {
    "run": ["--clients", "4", "--rounds", "20"],
    "compare": ["--clients", "4", "--rounds", "20", "--seeds", "1"],
    "advise": ["--clients", "3", "--rounds", "20"],
    "reproduce": ["--quick", "--seeds", "1", "--column", "digits"],
}
# The command, with these options; a reproduction is of digits alone, with few clients and rounds.
OFMS = f"""\
#!{sys.executable}
import re, sys
from ofms.__main__ import main
command, *words = sys.argv[1:]
smaller = {SMALLER}.get(command, [])
if command == "reproduce":
    from ofms.reproduction.bench import Size
    Size.given = lambda size, experiment: {{"clients": 10, "rounds": 12}}
    line = re.sub(r"--(column|models) (air|mnist|cifar10|wec|digits)\\S*", "", " ".join(words))
    words = [word for word in line.split() if word != "--quick"]
if "--resume" not in words and not any(word.endswith(".toml") for word in words):
    # Several processes need as many shards of clients.
    words += ["50" if each == "4" and "--processes" in words else each for each in smaller]
sys.argv[1:] = [command, *words]
sys.exit(main())
"""
# With clients for eight processes.
EXPERIMENT = """\
dataset = "digits"
models = "DICTIONARY"
budget = "5"
bandwidth = "50%"
clients = 200
rounds = 30
"""
# No network but the loopback interface, system folders of its own, and no process that survives.
ISOLATED = ["unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Pages that need the paper's data, and the one that installs and builds packages.
WITH_DATA, WITH_NETWORK = {"commands"}, {"releasing"}


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
        assert arguments[0] in targets, f"{' '.join(words)}: no target of the Makefile"
    elif program == "pip":
        for extra in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
            assert {*extra.split(",")} <= {*EXTRAS}, words
    elif program in ("python", "pytest") and "-m" not in arguments:
        path = next(word for word in arguments if not word.startswith("-")).partition("::")[0]
        found = any((ROOT / folder / path).exists() for folder in ("", "examples/own_data"))
        assert found, f"{' '.join(words)}: no file {path}"
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_within_sentences_exist_with_their_options(page: Path) -> None:
    for words in sentence_commands(page):
        _require_named(words)


def _require_named(words: list[str]) -> None:
    if words[0] != "ofms":
        _require_valid(words)
        return
    command: click.Command = cli
    for word in words[1:]:
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
        elif word.startswith("--"):
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            assert word in known | {"--help", "--version"}, f"{' '.join(words)}: no option {word}"
        else:
            assert not isinstance(command, click.Group), f"{' '.join(words)}: no command {word}"


def test_a_wrong_option_within_a_sentence_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Use `ofms deploy\nset fleet --bandwith 5`, or\n\n```bash\nofms nothing\n```\n")
    (words,) = sentence_commands(tmp_path / "page.md")
    with pytest.raises(AssertionError, match="no option --bandwith"):
        _require_named(words)
    with pytest.raises(AssertionError, match="no command watches"):
        _require_named(["ofms", "deploy", "watches", "fleet"])


def test_other_commands_within_sentences_and_tables_are_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "Run `make tests`, or `A=b .venv/bin/pytest\ntests/nowhere.py -k x`:\n\n| | `python benchmarks/none.py` |\n"
    )
    make, pytest_, python = sentence_commands(tmp_path / "page.md")
    for words, message in (
        (make, "make tests: no target of the Makefile"),
        (pytest_, "no file tests/nowhere.py"),
        (python, "no file benchmarks/none.py"),
    ):
        with pytest.raises(AssertionError, match=message):
            _require_named(words)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in ("toml", "json")], ids=str)
def test_files_can_be_read(block: Block) -> None:
    (tomllib.loads if block.language == "toml" else json.loads)(block.text)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pages name: runs, dictionaries, a device's store, the examples; and the command."""
    folder = tmp_path_factory.mktemp("pages")
    run = ofms.simulate("digits", clients=4, rounds=20, out=folder / "RUN", save_models=True)
    # A page adds the models of one to a fleet with those of another, and names two models.
    for folder_name, prefix in (("DIR", "new-"), ("DICTIONARY", ""), ("models", "")):
        names = ["small-net", "large-net", *(model.name for model in run.models.models[2:])]
        models = [replace(model, name=prefix + name) for model, name in zip(run.models.models, names, strict=True)]
        replace(run.models, models=tuple(models)).write(folder / folder_name)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    stream = load_dataset("digits").stream(clients=1, rounds=80, seed=0)
    np.savez(folder / "samples.npz", x=stream.x[0], y=stream.y[0])
    _store(folder / "store", run.models)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    _interrupt(folder, "STOPPED")
    shutil.copytree(folder / "STOPPED", folder / "shared/stopped")
    (folder / "bin").mkdir()
    (folder / "bin/ofms").write_text(OFMS)
    (folder / "bin/ofms").chmod(0o755)
    return folder


def _store(folder: Path, models: ofms.Dictionary) -> None:
    """The store of a device that has had its first grant."""
    budget = 5 * int(models.catalogue().storage.max())
    coordinator = Coordinator(models, budgets=np.array([budget]), bandwidth=budget, interval=20)
    with ofms.Device(folder, budget=budget, mail=False) as device:
        device.receive(coordinator.welcome(client=0))
        request = device.collect()
        assert request is not None
        device.receive(coordinator.run_exchange({0: request})[0])
        assert device.ready


def _interrupt(folder: Path, out: str) -> None:
    """A run that is stopped after a checkpoint."""
    command = [
        sys.executable,
        "-m",
        "ofms",
        "run",
        "experiment.toml",
        "--checkpoint",
        "0",
        "--rounds",
        "300",
        "--out",
        out,
    ]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        while run.poll() is None and not any((folder / out).glob("checkpoint*")):
            time.sleep(0.02)
        run.terminate()
        assert run.wait() == 128 + signal.SIGTERM, "the run ended before it was stopped"


def _clone(folder: Path) -> Path:
    """A copy of this project without what tools left behind."""
    left_behind = (".git", ".venv", "build", "dist", "mutants", "runs", "*.egg-info", "__pycache__", ".*_cache")
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*left_behind)))


def _new_environment(folder: Path) -> str:
    """The programs of an environment with nothing but pip, which may install from PyPI."""
    try:
        socket.create_connection(("pypi.org", 443), timeout=20).close()
    except OSError as error:
        pytest.skip(f"pypi.org is out of reach: {error}")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return str(folder / "bin")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.page == page for block in RUNNABLE)], ids=lambda page: page.stem
)
def test_blocks_of_a_page_run(page: Path, prepared: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "page"
    shutil.copytree(prepared, folder, symlinks=True)
    if page.stem in WITH_DATA:
        request.getfixturevalue("data_folder")
        (folder / "AIR").symlink_to(request.getfixturevalue("reference_folder") / "air")
    isolated = page.stem not in WITH_NETWORK
    paths = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    if not isolated:
        folder = _clone(tmp_path / "clone")
        paths.insert(0, _new_environment(tmp_path / "environment"))
    environment = os.environ | {
        "PATH": os.pathsep.join(paths),
        # Shell completion is installed below the home folder.
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
        "MPLBACKEND": "agg",
    }
    if isolated:
        environment["PIP_NO_INDEX"] = "1"  # what pages install is installed
    done = _run_page(page, folder, environment, isolated=isolated)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    print(done.stdout)


def _run_page(
    page: Path, folder: Path, environment: dict[str, str], *, isolated: bool
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.page_runner", str(page)]
    if isolated:
        if subprocess.run([*ISOLATED, "true"], capture_output=True).returncode:
            pytest.skip("namespaces of one's own are not allowed here")
        command = [*ISOLATED, *command, "--isolated"]
    environment |= {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_block_that_fails_or_ends_too_early_is_found(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    page = tmp_path / "page.md"
    server = "<!-- runs until stopped -->\n```bash\nsleep 1000\n```\n"
    name = "<!-- machines: 2 -->\n```bash\ngetent hosts node0; echo machine $NODE\n```\n"
    for blocks, status, said in [
        (server + name, 0, "stopped, status -2"),
        (name + "```bash\nfalse\n```\n", 1, f"FAILED: {page}:5: status 1"),
        (server.replace("sleep 1000", "sleep 1"), 1, f"FAILED: {page}:2: ended by itself with status 0"),
    ]:
        page.write_text(blocks)
        done = _run_page(page, tmp_path / "page", dict(os.environ), isolated=True)
        assert done.returncode == status, done.stderr
        assert said in done.stdout
        (tmp_path / "page/pump-1").unlink()
