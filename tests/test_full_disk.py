"""A disk that is full from the n-th write on: one line, earlier files whole, and with room again the same bits."""

from __future__ import annotations

import contextlib
import errno
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import ofms
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.report import page
from ofms.runs import checkpoint
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.full_disk import full_after
from tests.killing import Workplace, without_page
from tests.repeated_tasks import TASKS, leftovers

SOURCES = Path(ofms.__file__).parent


@pytest.fixture(autouse=True)
def _checkpoint_after_each_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_MOST_TIME", float("inf"))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def survives(place: Workplace, expected: Any, room: int, error: int, capsys: pytest.CaptureFixture[str]) -> bool:
    """Room for some writes, then a full disk; then room again. Return whether the disk became full."""
    place.renew()
    before = files(place.folder)
    capsys.readouterr()
    with full_after(room, error) as disk:
        try:
            status = place.task.run(place.folder)
        except (OSError, ofms.InvalidInput):
            status = 1
            assert place.name == "device", "a command does not raise"
    said = capsys.readouterr().err.splitlines()
    if place.name != "device" and status != 0:
        assert status in (1, 2)
        assert sum(line.startswith("ofms: ") for line in said) == 1, said
        assert "Traceback" not in "".join(said)
    assert not [name for name in leftovers(place.folder) if name.endswith(".part")]
    after = files(place.folder)
    assert {path: after.get(path) for path in before if "cells" in path.parts or "models" in path.parts} == {
        path: content for path, content in before.items() if "cells" in path.parts or "models" in path.parts
    }
    assert place.task.run(place.folder) == 0
    assert place.task.outcome(place.folder) == expected
    return disk.writes > room


def place_and_outcome(name: str, folder: Path) -> tuple[Workplace, Any, int]:
    """A task, what it makes, and the number of its writes."""
    place = Workplace(name, folder)
    with full_after(None) as disk:
        assert place.task.run(place.folder) == 0
    return place, place.task.outcome(place.folder), disk.writes


@pytest.mark.parametrize("task", TASKS)
def test_a_disk_that_fills_at_a_write(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "write_report", without_page)
    place, expected, writes = place_and_outcome(task, tmp_path)
    for room in random.Random(3).sample(range(writes - 5), 2):
        assert survives(place, expected, room, errno.ENOSPC, capsys)
    assert survives(place, expected, 0, errno.EROFS, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_disk_that_fills_at_every_write_in_turn(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, expected, writes = place_and_outcome(task, tmp_path)
    # The first run may write some files more, to a cache.
    room = 0
    while survives(place, expected, room, errno.ENOSPC, capsys):
        room += 1
    assert room > writes - 10


def serve(folder: Path, devices: Path, room: int | None, exchanges: int = 3) -> tuple[Any, int]:
    """Run exchanges of a fleet; the server's disk fills during the second. Its models, and the writes of that one."""
    persistence, fleet = PersistentCoordinator(Deployment(folder)), DirectFleet(devices)
    fleet.join(persistence)
    persistence.save()
    writes = 0
    for exchange in range(exchanges):
        fleet.close()
        shutil.copytree(devices, devices.with_name("copy"), dirs_exist_ok=True)
        fleet = DirectFleet(devices)
        fleet.answer_all(persistence)
        if exchange != 1:
            persistence.close_exchange()
            continue
        with full_after(room) as disk, contextlib.suppress(OSError):
            persistence.close_exchange()
        writes = disk.writes
        persistence.close()
        fleet.close()
        persistence = PersistentCoordinator(Deployment(folder))
        assert leftovers(folder) == []
        if persistence.coordinator.exchange == exchange:
            # The checkpoint before it: the exchange is repeated, here with the devices as they were.
            shutil.rmtree(devices)
            shutil.copytree(devices.with_name("copy"), devices)
            fleet = DirectFleet(devices)
            fleet.answer_all(persistence)
            persistence.close_exchange()
        else:
            fleet = DirectFleet(devices)
    found = parameters(persistence), persistence.coordinator.version.tolist(), persistence.coordinator.exchange
    fleet.close()
    persistence.close()
    return found, writes


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_the_disk_of_a_server_fills_at_a_write_of_a_checkpoint(step: int, tmp_path: Path) -> None:
    made = make_fleet(tmp_path / "made")
    shutil.copytree(made, tmp_path / "whole")
    expected, writes = serve(tmp_path / "whole", tmp_path / "whole-devices", None)
    assert writes > 10
    for room in range(0, writes, step):
        shutil.copytree(made, tmp_path / str(room))
        assert serve(tmp_path / str(room), tmp_path / f"{room}-devices", room)[0] == expected


def test_files_are_written_in_one_place() -> None:
    """What the tests above fill up: everything else calls `write_whole`, `replacing` or `GrowingFile`."""
    writing = re.compile(
        r"write_bytes|write_text|save_file|savez\((?!\*|buffer)|\.touch\(|open\([^)]*[\"'](w|a|x|r\+|w\+)b?[\"']|os\.write\("
    )
    allowed = {"storage/files.py", "coordinator/events.py", "runs/interrupt.py", "flower/processes.py"}
    found = {
        str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if writing.search(path.read_text("utf-8"))
    }
    assert found <= allowed
