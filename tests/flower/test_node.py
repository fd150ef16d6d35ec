"""A device's node against a SuperLink in memory: when messages count as received, what a restart repeats, refusals."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ofms
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.files import DEVICE_KEY
from ofms.device.device import Device
from ofms.flower import FLOWER_VERSION, node, polling, require_flower
from ofms.flower.fleet_api import FleetApi, Gone
from ofms.flower.objects import Transfer, decode_record
from ofms.flower.opaque import read_record
from ofms.flower.records import to_record
from ofms.storage.envelope import Envelope, decode, encode
from tests.deployments import make_fleet
from tests.devices import coordinator_of_one, label_samples
from tests.flower.messages import flower_message, transfer_of
from tests.tampering import changed


class FakeApi:
    """A SuperLink in memory. `failures` are raised by the next calls of a method, by its name."""

    def __init__(self) -> None:
        self.node = 0
        self.waiting: list[Transfer] = []
        self.calls: list[str] = []
        self.replies: list[Envelope] = []
        self.alone: list[bool] = []
        self.failures: dict[str, list[Exception]] = {}
        self.before: dict[str, Callable[[], object]] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.before.get(name, lambda: None)()
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def activate(self, heartbeat_seconds: float) -> None:
        self._call("activate")
        self.node = 7

    def deactivate(self, number: int) -> None:
        self._call(f"deactivate {number}")

    def heartbeat(self, seconds: float) -> None:
        self._call("heartbeat")

    def pull(self) -> Transfer | None:
        self._call("pull")
        return self.waiting.pop(0) if self.waiting else None

    def pull_record(self, transfer: Transfer) -> dict[str, Any]:
        self._call("pull_record")
        return decode_record(bytes(transfer.contents[transfer.record]))

    def confirm(self, transfer: Transfer) -> None:
        self._call("confirm")

    def push(self, reply: Transfer) -> None:
        self._call("push")
        self.alone.append(reply.is_record_alone)
        self.replies.append(decode(read_record(self.pull_record(reply))[0]))

    def close(self) -> None:
        self._call("close")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()

    def connect(*given: object) -> FakeApi:
        fake.node = 0
        return fake

    monkeypatch.setattr(node, "FleetApi", connect)
    for module, name in ((polling, "_SOONEST"), (polling, "_LATEST"), (node, "_RETRY_SECONDS")):
        monkeypatch.setattr(module, name, 0.01)
    return fake


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fleet(tmp_path_factory.mktemp("fleet")) / "devices" / "device-0"


class Fleet:
    """One device that connects to a fake SuperLink, and its coordinator."""

    def __init__(self, folder: Path, own: Path, api: FakeApi) -> None:
        self.coordinator, self.budget, self.x, self.y = coordinator_of_one()
        self.folder, self.own, self.api = folder, own, api
        self.answered = 0

    def open(self) -> Device:
        return Device(self.folder / "store", budget=self.budget, connect=self.own)

    def send(self, content: bytes, kind: Any, wait: float = 60.0) -> None:
        self.api.waiting.append(transfer_of(flower_message(to_record(content, wait=wait), kind)))

    def answer(self) -> Envelope:
        wait_until(lambda: len(self.api.replies) > self.answered)
        self.answered += 1
        return self.api.replies[self.answered - 1]

    def join(self) -> Coordinator:
        self.send(self.coordinator.welcome(0), "join")
        self.coordinator.receive(0, self.answer())
        return self.coordinator

    def label(self, device: Device, exchange: int) -> None:
        wait_until(lambda: device.exchange == exchange)
        label_samples(device, self.x, self.y, range(*self.coordinator.fleet.schedule.span(exchange)))


@pytest.fixture
def fleet(tmp_path: Path, own: Path, api: FakeApi) -> Iterator[Fleet]:
    yield Fleet(tmp_path, own, api)
    assert not [thread.name for thread in threading.enumerate() if str(tmp_path) in thread.name]


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_device_answers_welcomes_and_grants_and_disconnects(fleet: Fleet) -> None:
    with fleet.open() as device:
        coordinator = fleet.join()
        for exchange in range(2):
            fleet.send(coordinator.open()[0], "exchange")
            fleet.label(device, exchange)
            assert coordinator.receive(0, fleet.answer()) == []
            coordinator.close()
    assert fleet.api.calls[-2:] == ["deactivate 7", "close"]
    assert not (device.store / "inbox").exists()


def test_an_answer_is_a_record_alone_if_the_server_reads_that(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet.open():
        fleet.join()
        # As servers of earlier versions.
        monkeypatch.setattr("ofms.flower.node.may_be_alone", lambda record: False)
        fleet.send(fleet.coordinator.welcome(0), "join")
        fleet.answer()
    assert fleet.api.alone == [True, False]


def test_a_message_is_confirmed_only_after_its_effect_is_in_the_store(fleet: Fleet) -> None:
    """At the moment of the confirmation, a copy of the store already has the grant."""
    exchanges: list[int] = []

    def copy() -> None:
        copied = fleet.folder / f"copy-{len(exchanges)}"
        subprocess.run(["cp", "-r", fleet.folder / "store", copied], check=True)
        with Device(copied, budget=fleet.budget, mail=False) as device:
            exchanges.append(device.exchange)

    with fleet.open() as device:
        coordinator = fleet.join()
        fleet.api.before["confirm"] = copy
        fleet.send(coordinator.open()[0], "exchange")
        fleet.label(device, 0)
        fleet.answer()
    assert exchanges == [0]


def test_a_program_that_was_killed_answers_after_its_restart(fleet: Fleet) -> None:
    """The network fails after the grant arrived; the next program has its question, and the same answer."""
    with fleet.open() as device:
        coordinator = fleet.join()
        fleet.send(coordinator.open()[0], "exchange")
        wait_until(lambda: fleet.api.calls.count("confirm") == 2)
        # Like a kill: the SuperLink is told nothing.
        fleet.api.failures["deactivate 7"] = [httpx.ConnectError("cut")]
    fleet.api.calls.clear()
    with fleet.open() as device:
        fleet.label(device, 0)
        assert coordinator.receive(0, fleet.answer()) == []
    assert fleet.api.calls[:2] == ["deactivate 7", "activate"], "it ends the earlier connection at once"
    assert fleet.api.calls.count("push") == 1


def test_a_program_that_was_killed_while_it_uploaded_waits_for_the_message_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower accepts one answer to a message, and would wait for the rest of that one for minutes."""
    monkeypatch.setattr(node, "_ABSENCE_SECONDS", 0.01)
    with fleet.open() as device:
        coordinator = fleet.join()
        grant = coordinator.open()[0]
        fleet.send(grant, "exchange")
        fleet.api.failures["push"] = [httpx.ReadTimeout("cut")] * 1000
        fleet.label(device, 0)
        wait_until(lambda: len(fleet.api.failures["push"]) < 999)
        fleet.api.failures["deactivate 7"] = [httpx.ConnectError("cut")]
    fleet.api.failures.clear()
    fleet.api.calls.clear()
    with fleet.open() as device:
        wait_until(lambda: fleet.api.calls.count("pull") > 2)
        assert "push" not in fleet.api.calls
        fleet.send(grant, "exchange")
        assert coordinator.receive(0, fleet.answer()) == []
    assert fleet.api.calls[:2] == ["deactivate 7", "activate"]
    assert fleet.api.calls.count("push") == 1


def test_an_answer_that_failed_in_the_network_is_pushed_again_unchanged(fleet: Fleet) -> None:
    with fleet.open() as device:
        coordinator = fleet.join()
        fleet.api.failures["push"] = [httpx.ReadTimeout("cut"), httpx.ConnectError("cut")]
        fleet.send(coordinator.open()[0], "exchange")
        fleet.label(device, 0)
        assert coordinator.receive(0, fleet.answer()) == []
        assert device.exchange == 0
    assert len(fleet.api.replies) == 2


def test_a_full_disk_delays_a_message_and_loses_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet.open() as device:
        coordinator = fleet.join()
        receive, failures = device.receive, [OSError(28, "No space left on device")] * 3

        def full(content: bytes) -> None:
            if failures:
                raise failures.pop()
            receive(content)

        monkeypatch.setattr(device, "receive", full)
        confirmed = fleet.api.calls.count("confirm")
        fleet.send(coordinator.open()[0], "exchange")
        fleet.label(device, 0)
        assert coordinator.receive(0, fleet.answer()) == []
        assert not failures
        assert fleet.api.calls.count("confirm") == confirmed + 1


def test_a_device_that_cannot_report_still_receives_messages(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet.open() as device:
        coordinator = fleet.join()
        fleet.send(coordinator.open()[0], "exchange")
        wait_until(lambda: device.exchange == 0)
        outgoing = device.outgoing

        def failing() -> None:
            raise ArithmeticError("not finite")

        monkeypatch.setattr(device, "outgoing", failing)
        pulled = fleet.api.calls.count("pull")
        wait_until(lambda: fleet.api.calls.count("pull") > pulled + 1)
        monkeypatch.setattr(device, "outgoing", outgoing)
        fleet.label(device, 0)
        assert coordinator.receive(0, fleet.answer()) == []


def test_a_grant_that_arrives_twice_is_processed_once(fleet: Fleet) -> None:
    with fleet.open() as device:
        coordinator = fleet.join()
        grant = coordinator.open()[0]
        fleet.send(grant, "exchange")
        fleet.label(device, 0)
        first = fleet.answer()
        fleet.send(grant, "exchange")
        again = fleet.answer()
    assert encode(first) == encode(again)
    assert device.predictions == len(fleet.x[: fleet.coordinator.fleet.schedule.span(0)[1]])


def test_bad_messages_are_refused_and_the_open_exchange_is_still_answered(fleet: Fleet) -> None:
    with fleet.open() as device:
        coordinator = fleet.join()
        grant = coordinator.open()[0]
        fleet.send(grant, "exchange")
        wait_until(lambda: device.exchange == 0)
        fleet.send(b"no envelope", "exchange")
        fleet.send(encode(changed(decode(grant), exchange=9)), "exchange")
        fleet.api.waiting.append(transfer_of(flower_message(to_record(grant), "exchange"), objects=5))
        reasons = [fleet.answer() for _ in range(3)]
        assert [each.kind for each in reasons] == ["refusal"] * 3
        for expected, found in zip(
            ["not a complete envelope", "exchange 9", "a message is one record"], reasons, strict=True
        ):
            assert expected in found.values["reason"]
        fleet.label(device, 0)
        assert coordinator.receive(0, fleet.answer()) == []


def test_why_messages_are_rejected_is_logged_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A server sends a welcome that was rejected again and again."""
    with fleet.open():
        for _ in range(2):
            for _ in range(3):
                fleet.send(b"no envelope", "join")
                assert fleet.answer().kind == "refusal"
            fleet.join()
    lines = [line for line in caplog.messages if "message rejected" in line]
    assert len(lines) == 2, "once before the device joins, and once after"


def test_a_device_without_labels_says_so_after_the_wait(fleet: Fleet) -> None:
    with fleet.open():
        coordinator = fleet.join()
        fleet.send(coordinator.open()[0], "exchange", wait=0.1)
        assert fleet.answer().kind == "nothing"


def test_a_run_that_ended_withdraws_its_questions(fleet: Fleet) -> None:
    """The server restarted: the answer to its earlier run is not needed, and it asks again."""
    with fleet.open() as device:
        coordinator = fleet.join()
        grant = coordinator.open()[0]
        fleet.api.failures["push"] = [Gone("its run has ended")]
        fleet.send(grant, "exchange")
        fleet.label(device, 0)
        wait_until(lambda: not fleet.api.failures["push"])
        fleet.send(grant, "exchange")
        assert coordinator.receive(0, fleet.answer()) == []


def test_a_node_that_is_no_longer_known_connects_again(fleet: Fleet) -> None:
    with fleet.open():
        fleet.join()
        response = httpx.Response(401, request=httpx.Request("POST", "https://server"))
        fleet.api.failures["pull"] = [httpx.HTTPStatusError("", request=response.request, response=response)]
        wait_until(lambda: fleet.api.calls.count("activate") == 2)


@pytest.mark.parametrize("broken", ["missing", "another kind", "unreadable"])
def test_a_folder_without_a_key_is_rejected_before_the_store_is_opened(broken: str, tmp_path: Path, own: Path) -> None:
    folder = tmp_path / "device"
    subprocess.run(["cp", "-r", own, folder], check=True)
    key = folder / DEVICE_KEY
    if broken == "missing":
        key.unlink()
    elif broken == "unreadable":
        key.write_bytes(b"no key")
    else:
        key.unlink()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with pytest.raises(ofms.InvalidInput):
        Device(tmp_path / "store", budget=1000, connect=folder)
    assert not (tmp_path / "store").exists()


def test_another_version_of_flower_is_rejected_in_one_line() -> None:
    with pytest.raises(
        ofms.InvalidInput, match=r"^flwr = 1\.41\.0: this version of ofms needs flwr==0\.1: pip install"
    ):
        require_flower("0.1")
    pinned = re.search(r"flwr==([\d.]+)", Path("pyproject.toml").read_text())
    assert pinned is not None
    assert pinned[1] == FLOWER_VERSION


def test_a_node_imports_no_pytorch_and_a_device_no_flower() -> None:
    for module, absent in (("ofms.flower.node", "torch"), ("ofms.device.device", "flwr")):
        code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_large_response_is_rejected_before_it_is_read(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that does not tell its size, or that would grow when it is decompressed."""
    read = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            read.append(True)
            yield b"x" * 2000

    headers: dict[str, str] = {}
    device = node.Node(own, budget=1000)
    api = FleetApi("server:1", device._authority, device._key, 1000)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, stream=Body()))
    monkeypatch.setattr(api._client._client, "_transport", transport)
    monkeypatch.setattr(api._client._client, "_mounts", {})
    for each in ({"content-length": "2000"}, {}, {"content-length": "10", "content-encoding": "gzip"}):
        headers = each
        with pytest.raises(ofms.InvalidInput, match="at most 1000 bytes"):
            api.pull()
    assert not read
    api.close()
