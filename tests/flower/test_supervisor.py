"""The supervisor's registration of keys and its server app, with a control API that records calls."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from flwr.common.constant import Status

import ofms
from ofms.coordinator.files import DEVICES, EVENTS
from ofms.coordinator.keys import revoke_device
from ofms.coordinator.roster import read_roster
from ofms.flower import supervisor as supervisor_module
from ofms.flower.control import Control
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


def test_events_are_echoed_also_after_the_log_was_rotated_or_emptied(tmp_path: Path) -> None:
    folder, lines = make_fleet(tmp_path / "fleet"), list[str]()
    events = folder / EVENTS
    events.write_text("before the start\n")
    supervisor = Supervisor(folder, echo=lines.append)
    with events.open("a") as log:
        log.write("one\ntwo\n")
    supervisor._echo_events()
    events.rename(folder / "events.log.1")
    supervisor._echo_events()
    # Longer than what was echoed: only the file tells that it is another one.
    events.write_text("three, in a file that is longer than the one before was\n")
    supervisor._echo_events()
    os.truncate(events, 0)
    with events.open("a") as log:
        log.write("four\n")
    supervisor._echo_events()
    supervisor._echo_events()
    assert lines == ["one", "two", "three, in a file that is longer than the one before was", "four"]
    supervisor._lock.close()


class FakeClient:
    """Runs by their status, as the control API lists them."""

    def __init__(self, **runs: str) -> None:
        self.runs = {int(number.removeprefix("run")): status for number, status in runs.items()}
        self.stopped: list[int] = []

    def ListRuns(self, request: Any) -> Any:  # noqa: N802
        found = {run: SimpleNamespace(status=SimpleNamespace(status=status)) for run, status in self.runs.items()}
        return SimpleNamespace(run_dict=found)

    def StopRun(self, request: Any) -> None:  # noqa: N802
        self.stopped.append(request.run_id)
        if self.runs[request.run_id] == Status.STARTING:
            asked = httpx.Request("POST", "https://server")
            raise httpx.HTTPStatusError("it has ended", request=asked, response=httpx.Response(400, request=asked))


def test_runs_of_servers_that_were_killed_are_stopped_before_another_one_starts() -> None:
    control = Control.__new__(Control)
    control._client = client = FakeClient(  # type: ignore[assignment]
        run3=Status.STARTING, run4=Status.RUNNING, run5=Status.FINISHED, run6=Status.PENDING
    )
    control.stop_all()
    assert client.stopped == [3, 4, 6]


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
