"""The supervisor's registration of keys and its server app, with a control API that records calls."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

import ofms
from ofms.coordinator.files import DEVICES
from ofms.coordinator.keys import revoke_device
from ofms.coordinator.roster import read_roster
from ofms.flower import supervisor as supervisor_module
from ofms.flower.processes import Process
from ofms.flower.supervisor import Supervisor
from tests.deployments import make_fleet


class FakeControl:
    """Registered keys by node."""

    def __init__(self) -> None:
        self.registered: dict[int, bytes] = {}
        self.stopped: list[int] = []

    def nodes(self) -> dict[bytes, int]:
        return {key: node for node, key in self.registered.items()}

    def register(self, key: bytes, name: str) -> int:
        node = len(self.registered)
        self.registered[node] = key.strip()
        return node

    def unregister(self, node: int) -> None:
        del self.registered[node]

    def ended(self, run: int) -> str | None:
        return None

    def stop(self, run: int) -> None:
        self.stopped.append(run)


def test_a_mistyped_key_does_not_change_the_registered_devices(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    supervisor, control = Supervisor(folder, echo=lambda line: None), FakeControl()
    supervisor._control = control  # type: ignore[assignment]
    supervisor._register_devices()
    assert set(control.nodes()) == set(read_roster(folder).public_keys())
    before, roster = dict(control.registered), (folder / DEVICES).read_text()
    for mistake in ("ecdsa-sha2-nistp384 ?", "ecdsa-sha2-nistp999 A", "no key at all: A"):
        (folder / DEVICES).write_text(roster.replace("ecdsa-sha2-nistp384 A", mistake, 1))
        supervisor._register_devices()
        assert control.registered == before
        with pytest.raises(ofms.InvalidInput, match=r"key of device-0 = .*: not a public key"):
            read_roster(folder)
    (folder / DEVICES).write_text(roster)
    revoke_device(folder, "device-1")
    supervisor._register_devices()
    assert len(control.registered) == 2, "changes take effect once the file is corrected"
    supervisor._lock.close()


def test_a_server_app_whose_process_is_killed_counts_as_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_REFRESH_SECONDS", 0.0)
    supervisor, control = Supervisor(make_fleet(tmp_path / "fleet"), echo=lambda line: None), FakeControl()
    # Beside the processes of a SuperLink, one with the name of a server app.
    processes = 'sleep 1000 & bash -c "exec -a flwr-serverapp sleep 1000"; sleep 1000'
    superlink = Process(["bash", "-c", processes], tmp_path / "home", tmp_path / "log")
    supervisor._control, supervisor._superlink, supervisor._run = control, superlink, 7  # type: ignore[assignment]
    try:
        while not superlink.runs("flwr-serverapp"):
            time.sleep(0.01)
        assert [supervisor.poll() for _ in range(3)] == [None] * 3
        (app,) = (each for each in psutil.Process(superlink.pid).children() if "flwr-serverapp" in each.cmdline())
        app.kill()
        while superlink.runs("flwr-serverapp"):
            time.sleep(0.01)
        assert [supervisor.poll() for _ in range(2)] == [None, "its process was killed"]
        assert control.stopped == [7]
    finally:
        supervisor._control = None
        supervisor._stop()
