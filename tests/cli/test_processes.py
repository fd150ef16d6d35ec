"""`--processes` and `torchrun`: real processes, one of which is killed, and ones that do not fit together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
import torch

from ofms import simulate
from ofms.cli import _main
from ofms.compute.group import OneProcess
from ofms.compute.process_group import _connected
from ofms.models.dictionary import Dictionary
from ofms.runs.result import Result
from tests.ranked import WAIT_SECONDS, start

RUN = ("run", "digits", "--policy", "ofms-ft", "--clients", "16", "--set", "shards=4", "--checkpoint", "0", "-q")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ofms", *arguments]


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that a command has started; the first one prints, the others to the null device."""
    found = psutil.Process(process.pid).children()
    return sorted(found, key=lambda rank: os.readlink(f"/proc/{rank.pid}/fd/1") == os.devnull)


def with_another_bit(models: Path) -> Path:
    """A copy of a dictionary, one of whose parameters differs in its last bit."""
    dictionary, folder = Dictionary.read(models), models.with_name("others")
    tensors = [dict(model.tensors) for model in dictionary.models]
    name, parameter = next(iter(tensors[-1].items()))
    changed = parameter.clone()
    changed.view(-1)[0] = torch.nextafter(changed.view(-1)[0], torch.tensor(torch.inf))
    tensors[-1][name] = changed
    dictionary.with_tensors(tensors).write(folder)
    return folder


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until a file exists, while the command runs."""
    end = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """The statuses of processes, and what they printed to standard error."""
    found = [(each, each.communicate(timeout=WAIT_SECONDS)[1]) for each in processes]
    return [(process.returncode, errors) for process, errors in found]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_others_with_one_line_and_three_resume_the_run(killed: int, tmp_path: Path) -> None:
    size = ("--rounds", "120")
    process = subprocess.Popen(
        command(*RUN, *size, "--processes", "2", "--out", str(tmp_path / "run")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path / "run" / "checkpoint" / "latest.json", process)
    ranks = ranks_of(process)
    ranks[killed].send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert errors.splitlines() == [
        f"ofms: process {killed + 1} of 2 was ended by SIGKILL; continue with: ofms run --resume {tmp_path / 'run'}"
    ]
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)
    resumed = command("run", "--resume", str(tmp_path / "run"), "--processes", "3", "-q")
    subprocess.run(resumed, check=True, capture_output=True, timeout=WAIT_SECONDS)
    alone = simulate("digits", policy="ofms-ft", clients=16, rounds=120, shards=4)
    found = Result.load(tmp_path / "run")
    assert found.score.tolist() == alone.score.tolist()
    assert found.clients["regret"].tolist() == alone.clients["regret"].tolist()


def test_a_killed_process_of_a_command_that_goes_on_by_itself_names_the_remedy() -> None:
    code = """
import os, signal, click
from ofms.cli.processes import own_rank, start_if_asked
try:
    start_if_asked(2, remedy="the same command resumes it")
except click.exceptions.Exit as end:
    raise SystemExit(end.exit_code)
if own_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert found.returncode == 1
    assert found.stderr.splitlines() == ["ofms: process 2 of 2 was ended by SIGKILL; the same command resumes it"]


@pytest.mark.slow
@pytest.mark.parametrize("forks", [True, False])
def test_a_signal_to_the_command_stops_all_processes_after_an_exchange(forks: bool, tmp_path: Path) -> None:
    code = f"import ofms.cli.processes as p; p.FORKS = {forks}; from ofms.__main__ import main; main()"
    arguments = [*RUN, "--rounds", "20000", "--processes", "2", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path / "run" / "checkpoint" / "latest.json", process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert len(errors.splitlines()) == 1
    assert f"continue with: ofms run --resume {tmp_path / 'run'}" in errors


@pytest.mark.slow
@pytest.mark.parametrize("difference", ["configuration.seed", "version", "data", "dictionary"])
def test_a_process_that_differs_is_refused_before_the_first_round(
    difference: str, models: Path, tmp_path: Path
) -> None:
    given = [*RUN, "--rounds", "60", "--out", str(tmp_path / "run")]
    first, other = [*given, "--models", str(models)], [*given, "--models", str(with_another_bit(models))]
    if difference != "dictionary":
        other = [*first, "--seed", "3"] if difference == "configuration.seed" else first
    changed = {
        "version": "import ofms.core.version as v; v.__version__ = '0.0.1'; ",
        "data": "import ofms.data.stream as s; s.Stream.fingerprint = lambda self: 'another'; ",
    }.get(difference, "")
    port = str(_free_port())
    processes = []
    for rank, arguments in enumerate((first, other)):
        code = f"{changed if rank else ''}import sys; from ofms.__main__ import main; main()"
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=os.environ | variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    (status, line), (other_status, nothing) = ended(processes)
    assert (status, other_status) == (2, 2)
    assert len(line.splitlines()) == 1
    assert line.startswith(f"ofms: {difference} = ")
    assert "process 2 of 2 differs from the first one" in line
    assert nothing == ""
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_connection_that_broke_is_one_line_that_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def total(self: OneProcess, shards: object, block: object, like: object) -> NoReturn:
        with _connected():
            raise RuntimeError("Read error [10.0.0.2]:4: No route to host")

    monkeypatch.setattr(OneProcess, "total", total)
    assert _main([*RUN, "--rounds", "60", "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "ofms: the connection to another process of the run broke: Read error [10.0.0.2]:4: No route to host; "
        f"once it is corrected, continue with: ofms run --resume {tmp_path / 'run'}"
    ]


def test_a_port_in_use_and_a_master_that_nobody_reaches_are_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ["ofms", "run", "digits"]
        first = start(2, arguments, MASTER_PORT=port, OFMS_JOIN_SECONDS="5")
        for process in first[1:]:
            process.kill()
        (status, line), _ = ended(first)
    assert (status, len(line.splitlines())) == (2, 1)
    assert "the port is in use" in line
    second = start(2, arguments, MASTER_PORT=port, OFMS_JOIN_SECONDS="2")
    second[0].kill()
    _, (status, line) = ended(second)
    assert (status, len(line.splitlines())) == (2, 1)
    assert "MASTER_ADDR:MASTER_PORT = 127.0.0.1:" in line


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "abc"), ("WORLD_SIZE", "-2"), ("RANK", "x"), ("MASTER_PORT", "80a")]
)
def test_a_variable_of_torchrun_that_is_no_number_is_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", name: value}
    for each, text in variables.items():
        monkeypatch.setenv(each, text)
    assert _main(["run", "digits", "--rounds", "2"]) == 2
    assert capsys.readouterr().err == f"ofms: {name} = {value}: give a whole number, as torchrun does, or unset it\n"
