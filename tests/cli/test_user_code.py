"""Code of the user's own that fails: one line with file, line and exception; the run can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ofms
from ofms.models.dictionary import Dictionary
from ofms.plugins import Trust, load_object
from tests.cli.commands import run

Writer = Callable[[str, str], Trust]

POLICY = """
from dataclasses import dataclass
from ofms.policies import Algorithm, Exp3, Exp3Client, Fleet, GrantingServer, Policy, resolve_rate

@dataclass(frozen=True)
class Settings:
    epsilon: float = 0.1

@dataclass(frozen=True)
class Client(Exp3Client):
    def select(self, state, draws):
        {select}
        return super().select(state, draws)
    def plan(self, state, grants):
        {plan}
        return super().plan(state, grants)
    def learn(self, state, plan, seen):
        {learn}
        return super().learn(state, plan, seen)

class Server(GrantingServer):
    def grant(self, state, wanted, draws):
        {grant}
        return super().grant(state, wanted, draws)

def build(settings, fleet):
    {build}
    client = Client(Exp3(1.0, settings.epsilon, "all", fleet.horizon), subset="random")
    return Policy(client=client, server=Server(), loss_bound="clip", expected_weights=lambda client, server: client.pmf)

algorithm = Algorithm(Settings, Client, build)
"""
PARTS = ("select", "plan", "learn", "grant", "build")
NETWORK = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, width):
        super().__init__()
        {factory}
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))
    def forward(self, x):
        {forward}
        return self.layers(x)
"""


def policy_source(**broken: str) -> str:
    return POLICY.format(**dict.fromkeys(PARTS, "pass") | broken)


def network_source(**broken: str) -> str:
    return NETWORK.format(**{"factory": "pass", "forward": "pass"} | broken)


@pytest.fixture
def experiment(write_module: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment on the user's own stream and networks."""
    trust = write_module("own_networks", network_source())
    write_module("own_policy", policy_source())
    folder = tmp_path / "own_modules"
    architectures = {f"net{k}": ("own_networks:Small", {"width": 3 + k}) for k in range(4)}
    small = load_object("own_networks:Small", field="network", trusted=trust)
    modules = {name: small(**options) for name, (_, options) in architectures.items()}
    Dictionary.from_modules(modules, task="regression", architectures=architectures).write(folder / "models")
    x = np.random.default_rng(0).normal(size=(3, 12, 3)).astype(np.float32)
    x[..., 0] = np.arange(12)  # The round.
    np.savez(folder / "samples.npz", x=x, y=x.sum(axis=2))
    (folder / "own.toml").write_text(
        'summary = "own"\nbudget = "2"\nbandwidth = "100%"\nmodels = "models"\n'
        '[stream]\nfile = "samples.npz"\ntask = "regression"\n[trust]\npackages = ["own_networks", "own_policy"]\n'
    )
    return folder / "own.toml"


def line_of(source: str, words: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if words in line)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ofms: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("loopback", [False, True])
def test_a_policy_that_fails(
    part: str,
    loopback: bool,
    experiment: Path,
    write_module: Writer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = policy_source(**{part: "raise KeyError('the reason\\nin two lines')"})
    write_module("own_policy", source)
    command: list[str | Path] = ["run", experiment, "--policy", "own_policy:algorithm", "--out", tmp_path / "run"]
    status = run(*command, *(["--loopback"] if loopback else []))
    line = one_line(capsys)
    assert status == 1
    where = f"own_policy.py, line {line_of(source, 'the reason')}: KeyError: "
    assert where in line
    assert ("continue with: ofms run --resume" in line) == (part != "build")
    assert "--traceback shows the rest" in line


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_is_resumed_once_its_code_is_corrected(
    kept: bool,
    experiment: Path,
    write_module: Writer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From its last checkpoint, or from the start if there is none yet."""
    arguments: list[str | Path] = [
        experiment,
        "--policy",
        "own_policy:algorithm",
        "--checkpoint",
        "0" if kept else "1000",
    ]
    assert run("run", *arguments, "--out", tmp_path / "whole") == 0
    source = policy_source(grant="if draws.exchange == 7: raise RuntimeError('now')")
    write_module("own_policy", source)
    assert run("run", *arguments, "--out", tmp_path / "parts") == 1
    assert "own_policy.py, line" in one_line(capsys)
    assert (tmp_path / "parts" / "checkpoint").exists() == kept
    write_module("own_policy", policy_source())
    assert run("run", "--resume", tmp_path / "parts") == 0
    for name in ("metrics.jsonl", "history.npz", "clients.npz"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_policy_that_ends_the_program(
    experiment: Path, write_module: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a result, the status is not that of success."""
    source = policy_source(learn="raise SystemExit(0)")
    write_module("own_policy", source)
    command: list[str | Path] = ["run", experiment, "--policy", "own_policy:algorithm", "--out", tmp_path / "run"]
    assert run(*command) == 1
    line = one_line(capsys)
    assert f"own_policy.py, line {line_of(source, 'SystemExit')}: SystemExit: 0" in line
    assert "continue with: ofms run --resume" in line


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("next(iter([]))", "StopIteration"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise GeneratorExit", "GeneratorExit"),
    ],
)
@pytest.mark.parametrize("part", ["learn", "build", "select"])
def test_a_policy_that_fails_in_an_unusual_way(
    part: str, code: str, reason: str, experiment: Path, write_module: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    source = policy_source(**{part: code})
    write_module("own_policy", source)
    status = run("run", experiment, "--policy", "own_policy:algorithm", "--out", experiment.parent / "run")
    line = one_line(capsys)
    assert status == 1
    assert f"own_policy.py, line {line_of(source, code)}: {reason}; " in line
    write_module("own_policy", f"{code}\n")
    assert run("run", experiment, "--policy", "own_policy:algorithm", "--out", experiment.parent / "run") == 2
    assert f"own_policy.py, line 1: {reason}" in one_line(capsys)


@pytest.mark.parametrize("returned", ["None", "'all'", "np.zeros(3)", "np.ones((1, 4)) / 4", "object()"])
@pytest.mark.parametrize("loopback", [[], ["--loopback"]])
def test_a_rule_that_returns_something_else_is_named(
    returned: str, loopback: list[str], experiment: Path, write_module: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails in code that policies share, and is no error of that."""
    rule = f"class Own(Exp3):\n    def probabilities(self, losses, subset): return {returned}\n\n"
    source = "import numpy as np\n" + policy_source().replace(" Client(Exp3(", " Exp3Client(Own(")
    write_module("own_policy", source.replace("def build", rule + "def build"))
    command: list[str | Path] = ["run", experiment, "--policy", "own_policy:algorithm", *loopback]
    status = run(*command, "--out", experiment.parent / "run")
    line = one_line(capsys)
    assert status == 2
    assert line.startswith("ofms: policy = own_policy:algorithm: ")
    assert "internal error" not in line


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("complex", "its setting epsilon is a complex; use int, float, str, bool, Literal, or a list of them"),
        ("float | bytes", "its setting epsilon is a bytes"),
        ("list[complex]", "its setting epsilon is a complex"),
        ("'flaot'", "the types of its settings cannot be read (name 'flaot' is not defined)"),
    ],
)
def test_a_setting_of_a_type_that_no_file_has_is_refused(
    kind: str, message: str, experiment: Path, write_module: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_module("own_policy", policy_source().replace("epsilon: float", f"epsilon: {kind}"))
    assert run("run", experiment, "--policy", "own_policy:algorithm", "--out", experiment.parent / "run") == 2
    line = one_line(capsys)
    assert f"policy = own_policy:algorithm: {message}" in line


def test_a_traceback_on_demand(
    experiment: Path, write_module: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_module("own_policy", policy_source(learn="1 / 0"))
    command: list[str | Path] = ["run", experiment, "--policy", "own_policy:algorithm", "--out", tmp_path / "run"]
    assert run(*command) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert run(*command[:-1], tmp_path / "again", "--traceback") == 1
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "in learn" in shown
    assert shown.splitlines()[-1].startswith("ofms: ")


@pytest.mark.parametrize(
    ("part", "code", "reason"),
    [
        ("factory", "raise KeyError('no such width')", "KeyError: 'no such width'"),
        ("factory", "open('/no/such/file')", "FileNotFoundError: [Errno 2]"),
        ("forward", "self.missing", "AttributeError: 'Small' object has no attribute 'missing'"),
        ("forward", "assert x.shape[-1] == 4, 'four'", "AssertionError: four"),
    ],
)
def test_a_network_that_fails(
    part: str,
    code: str,
    reason: str,
    experiment: Path,
    write_module: Writer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = network_source(**{part: code})
    write_module("own_networks", source)
    status = run("run", experiment, "--policy", "own_policy:algorithm", "--out", tmp_path / "run")
    line = one_line(capsys)
    assert status == 2
    assert f"own_networks.py, line {line_of(source, code)}: {reason}" in line
    assert not (tmp_path / "run").exists(), "nothing is written"


def test_a_network_that_fails_during_the_run(
    experiment: Path, write_module: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = network_source(forward="if (x[:, 0] == 9).any(): raise ZeroDivisionError('round ten')")
    write_module("own_networks", source)
    assert run("run", experiment, "--policy", "own_policy:algorithm", "--out", tmp_path / "run") == 1
    line = one_line(capsys)
    assert f"own_networks.py, line {line_of(source, 'round ten')}: ZeroDivisionError: round ten" in line
    write_module("own_networks", network_source())
    assert run("run", "--resume", tmp_path / "run") == 0
    assert ofms.load(tmp_path / "run").config.rounds == 12


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("    return Policy(", "    return dict(", "its build returned a dict; return a Policy"),
        ("algorithm = Algorithm(Settings,", "algorithm = Algorithm(3,", "needs settings, a dataclass"),
    ],
)
def test_what_is_no_policy_is_named(
    before: str,
    after: str,
    message: str,
    experiment: Path,
    write_module: Writer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_module("own_policy", policy_source().replace(before, after))
    assert run("run", experiment, "--policy", "own_policy:algorithm", "--out", tmp_path / "run") == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize("start", [["-m", "ofms"], ["-c", "from ofms.cli import main; main()"]])
def test_files_beside_the_experiment_replace_no_module_of_python(
    start: list[str], experiment: Path, tmp_path: Path
) -> None:
    folder = experiment.parent
    for name in ("random", "statistics", "queue", "secrets", "numpy"):
        (folder / f"{name}.py").write_text("raise SystemExit('replaced')\n")
    source = "import random, secrets, statistics\nimport beside\n" + policy_source()
    (folder / "own_policy.py").write_text(source)
    (folder / "beside.py").write_text("found = True\n")
    command = [
        sys.executable,
        *start,
        "run",
        experiment.name,
        "--policy",
        "own_policy:algorithm",
        "--out",
        "run",
        "--json",
    ]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1])["rounds"] == 12
    command[command.index("own_policy:algorithm")] = "random:algorithm"
    found = subprocess.run(command[:-3], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 2
    assert "random is a module of Python itself; give your file another name" in found.stderr
