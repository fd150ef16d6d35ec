"""Scheduling of messages with a fake clock and a transport in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ofms.coordinator.changes import Requested
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import DEVICES, POLLED, STATE
from ofms.coordinator.keys import revoke_device
from ofms.coordinator.operation import request_change
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.status import read_status, status_text
from ofms.coordinator.transport import Kind, Reply
from ofms.storage.envelope import Envelope, decode, encode
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.scheduled_fleet import DEADLINE, EXCHANGES, TRAVEL, ScheduledFleet


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[ScheduledFleet]:
    made = ScheduledFleet(tmp_path)
    yield made
    made.close()


def test_an_exchange_is_closed_once_every_device_has_answered(scheduled: ScheduledFleet, tmp_path: Path) -> None:
    scheduled.run()
    assert (scheduled.attended, scheduled.missed) == ([EXCHANGES] * 3, [0] * 3)
    assert scheduled.clock.now < DEADLINE, "no exchange waited for its deadline"
    assert scheduled.persistence.records.refusals == []
    other = PersistentCoordinator(Deployment(make_fleet(tmp_path / "direct", rounds=2 * EXCHANGES)))
    direct = DirectFleet(tmp_path / "others")
    direct.join(other)
    for _ in range(EXCHANGES):
        direct.exchange(other)
    assert parameters(scheduled.persistence) == parameters(other), "as without a transport"
    direct.close()
    other.close()


def test_a_device_that_joins_late_takes_part_in_later_exchanges(scheduled: ScheduledFleet) -> None:
    scheduled.transport.connected.discard(2)
    scheduled.during(1, 0, lambda: scheduled.transport.connect(2))
    # Longer than between two looks at the connected nodes.
    scheduled.transport.delay = lambda *message: 3.0
    scheduled.run()
    assert scheduled.attended == [3, 3, 1]
    assert scheduled.missed == [0, 0, 0]
    first = next(when for when, _, kind, _ in scheduled.transport.sent if kind == "exchange")
    assert first >= DEADLINE, "the first exchange waits for all devices, until the deadline"


def test_a_device_that_reconnects_in_time_misses_nothing(scheduled: ScheduledFleet) -> None:
    scheduled.during(1, 1, lambda: scheduled.transport.disconnect(1))
    scheduled.clock.at(30, lambda: scheduled.transport.connect(1))
    scheduled.run()
    grants = scheduled.transport.grants_to(1)
    assert len(grants) == EXCHANGES + 1
    assert grants[1] == grants[2], "the same grant is sent again"
    assert (scheduled.attended, scheduled.missed) == ([3] * 3, [0] * 3)
    assert "device-1 (node 11) did not answer: node unavailable" in scheduled.events
    assert "device-1 (node 11) disconnected" in scheduled.events


def test_nobody_waits_for_a_device_that_rejects_its_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example because it has less memory than the change gives it, or does not trust a new model's package."""
    scheduled = ScheduledFleet(tmp_path, rounds=None)
    answer, sent = scheduled.transport.answer, scheduled.transport.sent

    def reject(client: int, kind: Kind, content: bytes) -> bytes | None:
        changed = decode(content).values.get("changed", "0") != "0"
        if (client, kind) == (1, "join") and changed and scheduled.clock.now < 30:
            return encode(Envelope("refusal", {"reason": "budget = 5 bytes: give more"}))
        return answer(client, kind, content)

    monkeypatch.setattr(scheduled.transport, "answer", reject)
    scheduled.clock.at(8.0, lambda: request_change(scheduled.folder, Requested(retire=["net0"])))
    shown: list[str] = []
    scheduled.clock.at(29.0, lambda: shown.append(status_text(read_status(scheduled.folder))))
    scheduled.run_for(45)
    assert "device-1 takes no part: it rejected its message: budget = 5 bytes: give more" in shown[0]
    assert "takes no part" not in status_text(read_status(scheduled.folder))
    assert "model net0 is retired" in scheduled.events
    grants = [[when for when, *to in sent if to[:2] == [client, "exchange"]] for client in range(3)]
    assert max(after - before for before, after in pairwise(grants[0])) < 6, "exchanges open without it"
    assert scheduled.events.count("rejected its message: budget = 5 bytes: give more") == 1
    assert [when for when in grants[1] if 8 < when < 30] == []
    assert max(grants[1]) > 30, "it takes part once it accepts"
    scheduled.close()


@pytest.mark.parametrize(("back", "attended"), [(9.0, [3, 3, 3]), (None, [3, 1, 3])])
def test_an_exchange_opens_some_seconds_later_for_a_device_whose_program_is_started_again(
    back: float | None, attended: list[int], scheduled: ScheduledFleet
) -> None:
    """It has answered, and disconnects while another one still works on the exchange."""
    scheduled.transport.delay = lambda *message: 5.0 if message == (0, "exchange", 0) else 0.0

    def leave() -> None:
        now = scheduled.clock.now
        scheduled.clock.at(now + 2.0, lambda: scheduled.transport.disconnect(1))
        if back is not None:
            scheduled.clock.at(now + back, lambda: scheduled.transport.connect(1))

    scheduled.during(0, 1, leave)
    scheduled.run()
    assert (scheduled.attended, scheduled.missed) == (attended, [0] * 3)
    assert scheduled.clock.now < DEADLINE, "not for long"


def test_a_change_waits_some_seconds_for_a_device_whose_program_is_started_again(scheduled: ScheduledFleet) -> None:
    """It has answered, and disconnects while the fleet changes: its request no longer counts, but it is expected."""
    scheduled.transport.delay = lambda *message: 5.0 if message == (0, "exchange", 0) else 0.0

    def change() -> None:
        now = scheduled.clock.now
        request_change(scheduled.folder, Requested(retire=["net0"]))
        scheduled.clock.at(now + 3.0, lambda: scheduled.transport.disconnect(1))
        scheduled.clock.at(now + 9.0, lambda: scheduled.transport.connect(1))

    scheduled.during(0, 1, change)
    scheduled.run()
    assert "exchange 1: model net0 is retired" in scheduled.events
    assert (scheduled.attended, scheduled.missed) == ([3, 3, 3], [0] * 3)


def test_an_exchange_after_a_change_survives_a_kill(tmp_path: Path) -> None:
    """Devices that answered it do not begin it anew: nothing is learnt twice, and each label counts once."""
    ended = []
    for killed in (False, True):
        scheduled = ScheduledFleet(tmp_path / str(killed))
        scheduled.during(0, 1, partial(request_change, scheduled.folder, Requested(retire=["net0"])))
        if killed:
            # The server is killed while one device still works on the exchange.
            scheduled.transport.delay = lambda *message: 30.0 if message == (2, "exchange", 1) else 0.0
            scheduled.run_for(25)
            assert len(scheduled.transport.grants_to(2)) == 2
            scheduled.restart()
        scheduled.run()
        assert "exchange 1: model net0 is retired" in scheduled.events
        assert [counts.samples for counts in scheduled.persistence.records.counts] == [6] * 3
        assert (scheduled.attended, scheduled.missed) == ([3, 3, 3], [0] * 3)
        ended.append(parameters(scheduled.persistence))
        scheduled.close()
    assert ended[0] == ended[1]


def test_the_server_waits_for_a_disconnected_device_until_the_deadline(scheduled: ScheduledFleet) -> None:
    scheduled.during(1, 1, lambda: scheduled.transport.disconnect(1))
    scheduled.run()
    assert scheduled.missed == [0, 1, 0]
    assert scheduled.attended == [3, 1, 3]
    assert scheduled.clock.now >= DEADLINE


def test_a_device_whose_answer_was_late_is_welcomed_again(scheduled: ScheduledFleet) -> None:
    slow = {(1, "exchange", 0): DEADLINE + TRAVEL + 5.0}
    scheduled.transport.delay = lambda *message: slow.get(message, 0.0)
    scheduled.run()
    assert scheduled.missed == [0, 1, 0]
    assert scheduled.attended[1] >= 1
    assert "exchange 0: 2 of 3 devices" in scheduled.events
    assert "no report from: device-1" in scheduled.events


def test_an_answer_to_a_welcome_of_an_earlier_exchange_is_too_late(scheduled: ScheduledFleet) -> None:
    scheduled.transport.connected.discard(2)
    scheduled.during(0, 0, lambda: scheduled.transport.connect(2))
    slow = {(2, "join", 1): 20.0, (0, "exchange", 0): 10.0, (0, "exchange", 1): 15.0}
    scheduled.transport.delay = lambda *message: slow.get(message, 0.0)
    scheduled.run()
    assert "device-2 (node 12) answered exchange 1 too late" in scheduled.events
    assert scheduled.attended == [3, 3, 1]


def test_a_revocation_in_mid_exchange_takes_effect_at_once(scheduled: ScheduledFleet) -> None:
    slow = {(1, "exchange", 1): 30.0}
    scheduled.transport.delay = lambda *message: slow.get(message, 0.0)
    scheduled.during(1, 1, lambda: revoke_device(scheduled.folder, "device-1"))
    scheduled.run()
    assert scheduled.attended == [3, 1, 3]
    assert scheduled.missed == [0, 0, 0], "it is no longer in the exchange"
    assert "device-1 (node 11) is revoked" in scheduled.events
    assert not any(sent.client == 1 for sent in scheduled.scheduler.messages.waiting.values())
    assert scheduled.clock.now < 30, "the exchange does not wait for it"


def test_a_grant_that_the_transport_does_not_accept_is_sent_again(scheduled: ScheduledFleet) -> None:
    scheduled.transport.full_for.add(0)
    scheduled.run()
    assert (scheduled.attended, scheduled.missed) == ([3] * 3, [0] * 3)
    assert scheduled.events.count("device-0 (node 10) was not sent its message") == 1
    assert scheduled.persistence.records.refusals == []
    sent = sum(len(content) for _, client, _, content in scheduled.transport.sent if client == 0)
    assert scheduled.persistence.records.counts[0].bytes_down == sent, "what was not accepted is not counted"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nonsense", "not a complete envelope"),
        (None, "it cannot be read"),
        (encode(Envelope("poem")), "another deployment"),
        (encode(Envelope("request", {"deployment": 7})), "another deployment"),
    ],
)
def test_a_malformed_reply_does_not_end_the_run(content: bytes | None, reason: str, scheduled: ScheduledFleet) -> None:
    answered = []

    def corrupt(reply: Reply) -> Reply:
        answered.append(reply)
        # The first answers the welcome, the second the grant of exchange 0.
        return replace(reply, content=content, error="KeyError") if len(answered) == 2 else reply

    scheduled.transport.changes[1] = corrupt
    scheduled.run()
    (line,) = scheduled.persistence.records.refusals
    assert "exchange 0: device-1 (node 11): message rejected" in line
    assert reason in line
    assert scheduled.missed == [0, 1, 0]
    assert scheduled.attended == [3, 1, 3], "it is welcomed during the next exchange"


def test_a_reply_from_the_node_of_another_device_is_refused(scheduled: ScheduledFleet) -> None:
    scheduled.transport.changes[1] = lambda reply: replace(reply, node=10)
    scheduled.run()
    assert scheduled.attended == [3, 0, 3]
    assert all("it answers for another node" in line for line in scheduled.persistence.records.refusals)
    assert scheduled.persistence.records.counts[0].refused == 0


def test_an_exchange_is_closed_after_deadline_and_travel_time(scheduled: ScheduledFleet) -> None:
    scheduled.transport.delay = lambda client, kind, exchange: None if (client, kind) == (2, "exchange") else 0.0
    scheduled.run()
    grants = sorted({when for when, _, kind, _ in scheduled.transport.sent if kind == "exchange"})
    assert grants[1] - grants[0] >= DEADLINE + TRAVEL
    assert grants[1] - grants[0] < DEADLINE + TRAVEL + 20
    assert scheduled.attended == [3, 3, 0]


def test_a_mistyped_key_does_not_change_the_roster_of_a_running_server(scheduled: ScheduledFleet) -> None:
    """The last valid roster is kept until the file is corrected, with one line in the log."""
    roster = (scheduled.folder / DEVICES).read_text()

    def mistype() -> None:
        (scheduled.folder / DEVICES).write_text(roster.replace("ecdsa-sha2-nistp384 A", "ecdsa-sha2-nistp384 ?", 1))

    def correct() -> None:
        (scheduled.folder / DEVICES).write_text(roster)
        revoke_device(scheduled.folder, "device-2")

    scheduled.during(0, 0, mistype)
    scheduled.clock.at(5.5, correct)
    scheduled.transport.delay = lambda *message: 3.0
    scheduled.run()
    assert scheduled.attended[:2] == [3, 3]
    assert scheduled.persistence.deployment.roster.devices[2].revoked
    assert scheduled.events.count("keeping the last valid devices: devices.toml: key of device-0 = ") == 1


def test_a_server_without_devices_says_that_it_works(scheduled: ScheduledFleet) -> None:
    """For the health check: nothing else is written while nobody is connected."""
    for client in range(3):
        scheduled.transport.disconnect(client)
    polled = scheduled.folder / STATE / POLLED
    seen: list[bool] = []

    def look() -> None:
        seen.append(polled.exists())
        polled.unlink(missing_ok=True)

    for when in (1.0, 5.0, 15.0, 30.0):
        scheduled.clock.at(when, look)
    scheduled.run_for(40)
    assert seen == [True, False, True, True]
