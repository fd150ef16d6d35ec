"""Scheduling of messages with a clock that does not run and a transport in memory: no processes, no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import DEVICES, EVENTS
from ofms.coordinator.keys import revoke_device
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.scheduler import Scheduler
from ofms.coordinator.transport import Reply
from ofms.storage.envelope import Envelope, decode, encode
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.memory_transport import FakeClock, MemoryTransport

EXCHANGES, DEADLINE, TRAVEL = 3, 60, 20


class Rig:
    """A deployment of three devices whose messages go through memory."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        given: dict[str, Any] = {"rounds": 2 * EXCHANGES, "deadline": DEADLINE, "travel": TRAVEL} | changes
        self.folder = make_fleet(folder / "fleet", **given)
        self.clock = FakeClock()
        self.persistence = PersistentCoordinator(Deployment(self.folder))
        self.fleet = DirectFleet(folder / "devices")
        self.transport = MemoryTransport(self.clock, self.persistence, self.fleet)
        self.scheduler = Scheduler(self.transport, self.persistence, self.clock)

    def run(self) -> None:
        self.scheduler.run()
        assert self.persistence.coordinator.finished

    def during(self, exchange: int, client: int, action: Any) -> None:
        """Do something when a device has got the grant of an exchange, before its answer is back."""
        answer = self.transport._answer

        def watched(who: int, kind: Any, content: bytes) -> bytes | None:
            if (who, kind) == (client, "exchange") and decode(content).values["exchange"] == exchange:
                self.transport._answer = answer  # type: ignore[method-assign]
                self.clock.at(self.clock.now + 0.25, action)
            return answer(who, kind, content)

        self.transport._answer = watched  # type: ignore[method-assign]

    @property
    def missed(self) -> list[int]:
        return [counts.missed for counts in self.persistence.records.counts]

    @property
    def attended(self) -> list[int]:
        return [counts.exchanges - counts.missed for counts in self.persistence.records.counts]

    @property
    def events(self) -> str:
        return (self.folder / EVENTS).read_text()

    def close(self) -> None:
        self.persistence.close()
        self.fleet.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_exchanges_go_by_as_fast_as_devices_answer(rig: Rig, tmp_path: Path) -> None:
    rig.run()
    assert (rig.attended, rig.missed) == ([EXCHANGES] * 3, [0] * 3)
    assert rig.clock.now < DEADLINE, "nobody waited for a deadline"
    assert rig.persistence.records.refusals == []
    other = PersistentCoordinator(Deployment(make_fleet(tmp_path / "direct", rounds=2 * EXCHANGES)))
    direct = DirectFleet(tmp_path / "others")
    direct.join(other)
    for _ in range(EXCHANGES):
        direct.exchange(other)
    assert parameters(rig.persistence) == parameters(other), "as without a transport"
    direct.close()
    other.close()


def test_a_device_that_joins_late_is_in_the_exchanges_from_then_on(rig: Rig) -> None:
    rig.transport.connected.discard(2)
    rig.during(1, 0, lambda: rig.transport.connect(2))
    rig.run()
    assert rig.attended == [3, 3, 1]
    assert rig.missed == [0, 0, 0]
    first = next(when for when, _, kind, _ in rig.transport.sent if kind == "exchange")
    assert first >= DEADLINE, "the first exchange waits for everybody, until the deadline"


def test_a_device_that_goes_away_and_is_back_in_time_misses_nothing(rig: Rig) -> None:
    rig.during(1, 1, lambda: rig.transport.disconnect(1))
    rig.clock.at(30, lambda: rig.transport.connect(1))
    rig.run()
    grants = rig.transport.grants_to(1)
    assert len(grants) == EXCHANGES + 1
    assert grants[1] == grants[2], "the same grant goes out again"
    assert (rig.attended, rig.missed) == ([3] * 3, [0] * 3)
    assert "device-1 (node 11) did not answer: node unavailable" in rig.events
    assert "device-1 (node 11) is away" in rig.events


def test_a_device_that_stays_away_is_waited_for_until_the_deadline(rig: Rig) -> None:
    rig.during(1, 1, lambda: rig.transport.disconnect(1))
    rig.run()
    assert rig.missed == [0, 1, 0]
    assert rig.attended == [3, 1, 3]
    assert rig.clock.now >= DEADLINE


def test_an_answer_that_comes_too_late_does_not_count_and_the_device_comes_back(rig: Rig) -> None:
    slow = {(1, "exchange", 0): DEADLINE + TRAVEL + 5.0}
    rig.transport.delay = lambda *message: slow.get(message, 0.0)
    rig.run()
    assert rig.missed == [0, 1, 0]
    assert rig.attended[1] >= 1, "it is welcomed again"
    assert "exchange 0: 2 of 3 devices" in rig.events
    assert "without a report: device-1" in rig.events


def test_a_welcome_answered_after_its_exchange_is_too_late(rig: Rig) -> None:
    rig.transport.connected.discard(2)
    rig.during(0, 0, lambda: rig.transport.connect(2))
    slow = {(2, "join", 1): 20.0, (0, "exchange", 0): 10.0, (0, "exchange", 1): 15.0}
    rig.transport.delay = lambda *message: slow.get(message, 0.0)
    rig.run()
    assert "device-2 (node 12) answered exchange 1 too late" in rig.events
    assert rig.attended == [3, 3, 1]


def test_a_revocation_in_mid_exchange_takes_effect_at_once(rig: Rig) -> None:
    slow = {(1, "exchange", 1): 30.0}
    rig.transport.delay = lambda *message: slow.get(message, 0.0)
    rig.during(1, 1, lambda: revoke_device(rig.folder, "device-1"))
    rig.run()
    assert rig.attended == [3, 1, 3]
    assert rig.missed == [0, 0, 0], "it is no longer in the exchange"
    assert "device-1 (node 11) is revoked" in rig.events
    assert not any(sent.client == 1 for sent in rig.scheduler.waiting.values())
    assert rig.clock.now < 30, "nobody waits for it"


def test_a_grant_that_the_transport_does_not_accept_goes_out_again(rig: Rig) -> None:
    rig.transport.full_for.add(0)
    rig.run()
    assert (rig.attended, rig.missed) == ([3] * 3, [0] * 3)
    assert rig.events.count("device-0 (node 10) did not get its message") == 1
    assert rig.persistence.records.refusals == []
    sent = sum(len(content) for _, client, _, content in rig.transport.sent if client == 0)
    assert rig.persistence.records.counts[0].bytes_down == sent, "what was not accepted is not counted"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nonsense", "not a complete envelope"),
        (None, "it cannot be read"),
        (encode(Envelope("poem")), "another deployment"),
        (encode(Envelope("request", {"deployment": 7})), "another deployment"),
    ],
)
def test_a_malformed_reply_ends_nothing(content: bytes | None, reason: str, rig: Rig) -> None:
    answered = []

    def spoil(reply: Reply) -> Reply:
        answered.append(reply)
        # The first answers the welcome, the second the grant of exchange 0.
        return replace(reply, content=content, error="KeyError") if len(answered) == 2 else reply

    rig.transport.changes[1] = spoil
    rig.run()
    (line,) = rig.persistence.records.refusals
    assert "exchange 0: device-1 (node 11): message refused" in line
    assert reason in line
    assert rig.missed == [0, 1, 0]
    assert rig.attended == [3, 1, 3], "it is welcomed during the next exchange"


def test_a_node_answers_for_its_own_device_alone(rig: Rig) -> None:
    rig.transport.changes[1] = lambda reply: replace(reply, node=10)
    rig.run()
    assert rig.attended == [3, 0, 3]
    assert all("it answers for another one" in line for line in rig.persistence.records.refusals)
    assert rig.persistence.records.counts[0].refused == 0


def test_an_exchange_is_closed_when_deadline_and_travel_are_over(rig: Rig) -> None:
    rig.transport.delay = lambda client, kind, exchange: None if (client, kind) == (2, "exchange") else 0.0
    rig.run()
    grants = sorted({when for when, _, kind, _ in rig.transport.sent if kind == "exchange"})
    assert grants[1] - grants[0] >= DEADLINE + TRAVEL
    assert grants[1] - grants[0] < DEADLINE + TRAVEL + 20
    assert rig.attended == [3, 3, 0]


def test_a_mistyped_key_while_the_server_runs_changes_nothing(rig: Rig) -> None:
    """The last valid roster holds until it is mended, with one line in the log."""
    roster = (rig.folder / DEVICES).read_text()

    def mistype() -> None:
        (rig.folder / DEVICES).write_text(roster.replace("ecdsa-sha2-nistp384 A", "ecdsa-sha2-nistp384 ?", 1))

    def mend() -> None:
        (rig.folder / DEVICES).write_text(roster)
        revoke_device(rig.folder, "device-2")

    rig.during(0, 0, mistype)
    rig.clock.at(4, mend)
    rig.transport.delay = lambda *message: 3.0
    rig.run()
    assert rig.attended[:2] == [3, 3]
    assert rig.persistence.deployment.roster.devices[2].revoked
    assert rig.events.count("the devices are as they were: devices.toml: key of device-0 = ") == 1
