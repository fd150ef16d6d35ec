"""`ofms deploy status` and `export` read a deployment and write nothing into it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from tests.cli.commands import run
from tests.deployments import make_fleet

_watched: list[tuple[str, list[str]]] = []
_WRITES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.utime", "os.truncate", "os.link")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for folder, found in _watched:
        path = str(arguments[0]) if arguments else ""
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o1103
        if path.startswith(folder) and (event in _WRITES or opened):
            found.append(f"{event} {path}")


sys.addaudithook(_audit)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Path]:
    folder = make_fleet(tmp_path / "fleet")
    persistence = PersistentCoordinator(Deployment(folder))
    persistence.save()
    yield folder
    persistence.close()


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))]


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["rollback"], ["export"]])
def test_reading_a_deployment_writes_nothing(
    command: list[str], deployment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, found = listing(deployment), list[str]()
    arguments = [command[0], str(deployment), *command[1:]]
    if command == ["export"]:
        arguments.append(str(tmp_path / "out"))
    _watched.append((str(deployment), found))
    try:
        assert run("deploy", *arguments) == 0
    finally:
        _watched.clear()
    assert found == []
    assert listing(deployment) == before
    if command == ["status"]:
        assert "running" in capsys.readouterr().out


def test_exporting_a_deployment_whose_server_never_ran_writes_nothing_into_it(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    before = listing(folder)
    assert run("deploy", "export", folder, tmp_path / "out") == 0
    assert listing(folder) == before
