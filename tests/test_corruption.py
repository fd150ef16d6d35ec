"""Files of a server and of a device that a disk changed: refused in one line, never read as something else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import STATE
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.core.errors import InvalidInput
from ofms.device.device import Device
from ofms.storage.checksums import with_checksum, without_checksum
from tests.deployments import DirectFleet, make_fleet
from tests.late_pattern import run_pattern

PLACES = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment after some exchanges, with a late answer, and its devices."""
    folder = tmp_path_factory.mktemp("whole")
    persistence = PersistentCoordinator(Deployment(make_fleet(folder / "fleet", quorum=0.6)))
    fleet = DirectFleet(folder / "devices")
    fleet.join(persistence)
    run_pattern(persistence, fleet, {(2, 2): 1}, 3)
    persistence.receive(2, fleet.envelope(2), 3)
    persistence.save()
    grants = persistence.coordinator.open([0])
    fleet.devices[0].receive(grants[0])
    fleet.label(0, range(6, 7))
    persistence.close()
    fleet.close()
    return folder


def damages(content: bytes, seed: int) -> Iterator[bytes]:
    """One byte changed, at random places and near the ends; and truncated files."""
    draw = random.Random(seed)
    for place in {0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(PLACES))}:
        yield content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    for length in (0, 1, len(content) // 2, len(content) - 1):
        yield content[:length]


def assert_refused(paths: list[Path], read: Callable[[], object], field: str) -> None:
    for number, path in enumerate(paths):
        content = path.read_bytes()
        for damaged in damages(content, number):
            path.write_bytes(damaged)
            with pytest.raises(InvalidInput) as error:
                read()
            assert error.value.field == field, path
            assert len(str(error.value).splitlines()) == 1
        path.write_bytes(content)
        read()


def test_a_server_does_not_read_a_damaged_checkpoint(whole: Path, tmp_path: Path) -> None:
    fleet = shutil.copytree(whole / "fleet", tmp_path / "fleet")

    def read() -> None:
        PersistentCoordinator(Deployment(fleet), read_only=True)

    models = sorted((fleet / STATE / "models").glob("*"))
    current = [
        fleet / STATE / "models" / f"{model}-{version}.safetensors"
        for model, version in enumerate(
            PersistentCoordinator(Deployment(fleet), read_only=True).coordinator.version.tolist()
        )
        if version
    ]
    assert len(models) > len(current) > 1, "and those for a rollback"
    assert_refused([fleet / STATE / "checkpoint.safetensors", *current[:2]], read, "checkpoint")
    persistence = PersistentCoordinator(Deployment(fleet))
    earlier = next(path for path in models if path not in current)
    model, version = map(int, earlier.stem.split("-"))
    content = earlier.read_bytes()
    earlier.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InvalidInput, match="its content changed"):
        persistence._checkpoint.model(persistence.coordinator, model, version)
    persistence.close()


def test_a_device_does_not_read_a_damaged_store(whole: Path, tmp_path: Path) -> None:
    store = shutil.copytree(whole / "devices" / "0", tmp_path / "store")

    def read() -> None:
        Device(store, budget=10**6, mail=False).close()

    assert_refused([store / "snapshot.safetensors", *sorted((store / "models").glob("*"))], read, "store")
    waiting = shutil.copytree(whole / "devices" / "0", tmp_path / "waiting")
    with Device(waiting, budget=10**6, mail=False) as device:
        device.collect(now=True)

    def read_waiting() -> None:
        Device(waiting, budget=10**6, mail=False).close()

    (message,) = waiting.glob("message-*")
    assert_refused([message], read_waiting, "store")


def test_a_changed_byte_of_a_journal_is_refused_unless_it_is_in_the_last_record(whole: Path, tmp_path: Path) -> None:
    store = shutil.copytree(whole / "devices" / "0", tmp_path / "store")
    device = Device(store, budget=10**6, mail=False)
    for step in range(3):
        device.predict(np.array([0.1 * step, 0.2, 0.3]))
    known = device.waiting
    device.close()
    (journal,) = store.glob("journal-*")
    content = journal.read_bytes()
    last = content.rindex(b"p", 0, len(content) - 20) - 8
    for place in range(len(content)):
        journal.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        if place < last:
            with pytest.raises(InvalidInput, match="its content changed after it was written"):
                Device(store, budget=10**6, mail=False)
            continue
        with Device(store, budget=10**6, mail=False) as device:
            assert device.waiting == known[:-1], place
        journal.write_bytes(content)


def test_files_of_an_earlier_version_are_read(whole: Path, tmp_path: Path) -> None:
    store = shutil.copytree(whole / "devices" / "0", tmp_path / "store")
    path = store / "snapshot.safetensors"
    content = without_checksum(path.read_bytes())
    assert with_checksum(content) == path.read_bytes()
    path.write_bytes(content)
    with Device(store, budget=10**6, mail=False) as device:
        assert device.exchange == 3
