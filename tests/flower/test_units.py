"""`ofms deploy units`: units that systemd accepts and finds hardened, and a container definition."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ofms.cli import cli
from ofms.core.version import __version__
from ofms.flower.processes import superlink_command
from tests.cli.commands import assert_refused, run

# Of ten; systemd calls up to 2 "OK".
MOST_EXPOSURE = 20


@pytest.fixture
def units(tmp_path: Path) -> Path:
    assert run("deploy", "units", tmp_path / "units", "--program", Path(sys.executable).parent / "ofms") == 0
    return tmp_path / "units"


def commands(units: Path) -> dict[str, list[str]]:
    """The command of each unit."""
    found = {}
    for path in units.glob("*.service"):
        (line,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), flags=re.MULTILINE)
        found[path.name] = shlex.split(line)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_them_and_finds_them_hardened(units: Path, tmp_path: Path) -> None:
    (units / "ofms-device@.service").rename(units / "ofms-device@pump-1.service")
    names = sorted(str(path) for path in units.glob("*.service"))
    assert len(names) == 3
    program = tmp_path / "ofms"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in map(Path, names):
        # Where the package is not installed as a command, another one stands for it.
        path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={program}", path.read_text(), flags=re.MULTILINE))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE}"]
    for name in names:
        found = subprocess.run([*rated, name], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout[-500:]


def test_their_commands_are_those_of_the_package(units: Path) -> None:
    found = commands(units)
    for name in ("ofms-server.service", "ofms-device@.service"):
        program, *arguments = found[name]
        assert Path(program).name == "ofms"
        deploy = cli.commands["deploy"]
        context = cli.make_context("ofms", arguments[:1], resilient_parsing=True)
        command = deploy.commands[arguments[1]]  # type: ignore[attr-defined]
        command.make_context(arguments[1], arguments[2:], parent=context)
    _, *started = superlink_command(Path("fleet"), "0.0.0.0", 9092)
    assert {each for each in started if each.startswith("-")} == {
        each for each in found["ofms-superlink.service"][1:] if each.startswith("-")
    }


@pytest.mark.parametrize("name", ["ofms-server.service", "ofms-superlink.service", "ofms-device@.service"])
def test_services_own_nothing_but_their_state(units: Path, name: str) -> None:
    lines = (units / name).read_text().splitlines()
    for expected in (
        *("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077", "StateDirectoryMode=0700"),
        *("CapabilityBoundingSet=", "Restart=on-failure", "RestartPreventExitStatus=2"),
    ):
        assert expected in lines


def test_the_container_has_this_version_and_is_nobody_special(units: Path) -> None:
    text = (units / "Containerfile").read_text()
    assert f'ARG OFMS="ofms[flower,export]=={__version__}"' in text
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    instructions = [line.split()[0] for line in joined.splitlines() if line]
    assert instructions[0] == "FROM"
    known = {"FROM", "ARG", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert set(instructions) <= known
    assert instructions.index("USER") > max(place for place, each in enumerate(instructions) if each == "RUN")
    assert re.search(r"^USER [1-9]\d+$", text, flags=re.MULTILINE)
    for shell in re.findall(r"^RUN (.*)$", joined, flags=re.MULTILINE):
        assert subprocess.run(["sh", "-n", "-c", shell], check=False).returncode == 0


def test_a_folder_in_use_or_a_relative_command_is_refused(
    units: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, run("deploy", "units", units), "it already exists")
    assert_refused(capsys, run("deploy", "units", tmp_path / "more", "--program", "ofms"), "give the whole path")
    assert not (tmp_path / "more").exists()
