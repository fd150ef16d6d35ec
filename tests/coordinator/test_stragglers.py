"""Exchanges that close with a quorum: which late answers count, when, and with which weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from ofms.coordinator import aggregation
from ofms.coordinator.aggregation import sum_updates
from ofms.coordinator.changes import Requested
from ofms.coordinator.commands import Command, give_command
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.operation import request_change
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.status import read_status, status_text
from ofms.coordinator.stragglers import LateAnswer
from ofms.coordinator.validation import Answer, Tensors, Update
from ofms.core.messages import Reports
from ofms.storage.envelope import decode
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.late_pattern import Late, run_pattern
from tests.policy_settings import SETTINGS
from tests.scheduled_fleet import DEADLINE, ScheduledFleet

EXCHANGES = 6
# Two of three devices.
QUORUM = 0.6


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[list[Answer]]:
    """The answers whose updates were summed, by exchange."""
    found: list[list[Answer]] = []

    def watched(answers: Sequence[Answer]) -> dict[int, Tensors]:
        found.append(list(answers))
        return sum_updates(answers)

    monkeypatch.setattr(aggregation, "sum_updates", watched)
    return found


def slow(fleet: ScheduledFleet, late: dict[tuple[int, str, int], float]) -> None:
    """Delays by device, kind and exchange, each once: a message that is sent again is answered at once."""
    fleet.transport.delay = lambda *message: late.pop(message, 2.0)


def test_an_exchange_closes_with_its_quorum_and_a_late_update_counts_in_the_next(
    tmp_path: Path, counted: list[list[Answer]]
) -> None:
    fleet = ScheduledFleet(tmp_path, quorum=QUORUM, rounds=2 * EXCHANGES)
    # An exchange takes 3 s, so this answer arrives in the second one.
    slow(fleet, {(2, "exchange", 0): 4.0})
    fleet.run()
    grants = {
        (int(decode(content).values["exchange"]), client): decode(content)
        for _, client, kind, content in fleet.transport.sent
        if kind == "exchange"
    }
    assert [client for exchange, client in grants if exchange == 1] == [0, 1]
    assert [client for exchange, client in grants if exchange == 2] == [0, 1, 2], "from the next one on"
    assert [int(answer.reports.client[0]) for answer in counted[0]] == [0, 1]
    assert [int(answer.reports.client[0]) for answer in counted[1]] == [0, 1, 2]
    assert fleet.clock.now < DEADLINE
    assert (fleet.missed, [each.late for each in fleet.persistence.records.counts]) == ([0, 0, 1], [0, 0, 1])
    assert "exchange 0: 2 of 3 devices" in fleet.events
    assert "no report yet from: device-2 (node 12)" in fleet.events
    assert "exchange 1: device-2 (node 12) answered exchange 0, 1 late" in fleet.events
    assert "late: device-2 (node 12) (exchange 0)" in fleet.events
    assert fleet.persistence.records.refusals == []
    fleet.close()


def test_a_late_update_has_its_recorded_weight_over_the_root_of_its_age(
    tmp_path: Path, counted: list[list[Answer]]
) -> None:
    """The whole step by hand: parameters + (1/N) Σ share · weight · update, N with the device that was late."""
    persistence = PersistentCoordinator(Deployment(make_fleet(tmp_path / "fleet")))
    fleet, coordinator = DirectFleet(tmp_path / "devices"), persistence.coordinator
    fleet.join(persistence)
    grants = coordinator.open()
    answers: dict[int, Any] = {}
    for client, content in grants.items():
        fleet.devices[client].receive(content)
        fleet.label(client, range(2))
        answers[client] = fleet.envelope(client)
    for client in (0, 1):
        persistence.receive(client, answers[client])
    persistence.close_exchange(awaited=[2])
    versions = coordinator.version.copy()
    assert 0 < versions.sum() < len(versions), "some models moved"
    before = [dict(tensors) for tensors in coordinator.tensors]
    for client, content in coordinator.open().items():
        fleet.devices[client].receive(content)
        fleet.label(client, range(2, 4))
        persistence.receive(client, fleet.envelope(client))
    assert coordinator.state.clients == 3
    persistence.receive(2, answers[2], 1)
    persistence.close_exchange()
    late, weights = answers[2], answers[2].values["weights"]
    assert weights
    both = {model for model in map(int, weights) if versions[model]}
    assert both, "one of its models moved meanwhile"
    for model in range(len(versions)):
        total = {name: torch.zeros_like(part) for name, part in before[model].items()}
        for answer in counted[1][:2]:
            if model in answer.updates:
                for name, part in answer.updates[model].delta.items():
                    total[name] += answer.updates[model].weight * part
        for name, part in late.by_model("delta").get(model, {}).items():
            age = int(versions[model]) - late.values["versions"][str(model)]
            assert age == int(versions[model])
            total[name] += weights[str(model)] / math.sqrt(1 + age) * torch.from_numpy(part.copy())
        for name, part in before[model].items():
            step = msgspec.to_builtins(coordinator.policy.server)["server_step"] / 3
            torch.testing.assert_close(coordinator.tensors[model][name], part + step * total[name])
    persistence.close()
    fleet.close()


def test_how_a_late_answer_counts() -> None:
    reports = Reports(4, np.array([7]), np.array([[3.0, 2.0, np.nan]]), np.array([[True, True, False]]))
    updates = {0: Update(6.0, {"w": torch.ones(2)}), 1: Update(5.0, {"w": torch.ones(2)})}
    late = LateAnswer(Answer(reports, updates), np.array([2, 1, 0]))
    answer = late.counted_in(9, np.array([5, 9, 1]), {1: 4})
    # Model 0 moved three times since: 1/√4. Model 1 went back to an earlier version as version 4, after version 1.
    assert {model: update.weight for model, update in answer.updates.items()} == {0: 3.0}
    assert answer.reports.exchange == 9
    assert answer.reports.updated.tolist() == [[True, False, False]]
    assert answer.reports.losses is not None
    assert answer.reports.losses[0, 0] == 1.5


@pytest.mark.parametrize("policy", ["ofms-ft", "late-hedge", "mab"])
def test_the_same_late_answers_give_the_same_models_and_choices(policy: str, tmp_path: Path) -> None:
    """Through scheduler and clock, and by hand without them."""
    given: dict[str, Any] = {"policy": policy, "settings": SETTINGS[policy], "rounds": 12, "quorum": QUORUM}
    scheduled = ScheduledFleet(tmp_path, **given)
    # Exchanges of 3 s: one answer late by one exchange, one by two.
    slow(scheduled, {(2, "exchange", 0): 4.0, (1, "exchange", 2): 7.5})
    scheduled.run()
    late: Late = {(2, 0): 1, (1, 2): 2}
    direct = PersistentCoordinator(Deployment(make_fleet(tmp_path / "direct", **given)))
    fleet = DirectFleet(tmp_path / "others")
    fleet.join(direct)
    seen = run_pattern(direct, fleet, late, EXCHANGES)
    assert seen == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 2], [0, 2], [0, 1, 2]]
    assert parameters(scheduled.persistence) == parameters(direct)
    assert scheduled.persistence.coordinator.version.tolist() == direct.coordinator.version.tolist()
    for client, device in enumerate(fleet.devices):
        assert scheduled.fleet.devices[client].holding == device.holding
        one, other = scheduled.fleet.envelope(client), fleet.envelope(client)
        assert one.values["weights"] == other.values["weights"]
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array, other.arrays[name])
    assert [counts.late for counts in direct.records.counts] == [0, 1, 1]
    assert direct.records.refusals == scheduled.persistence.records.refusals == []
    scheduled.close()
    direct.close()
    fleet.close()


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        *(("ofms-ft", 6.8), ("late-hedge", 9.5), ("mab", 9.5), ("late-hedge", 11.0)),
        *(
            pytest.param(policy, seconds, marks=pytest.mark.slow)
            for policy in ("ofms-ft", "late-hedge", "mab")
            for seconds in (2.0, 4.5, 5.5, 6.8, 8.0, 9.5, 11.0, 13.0, 15.0, 19.0)
        ),
    ],
)
def test_a_killed_server_counts_the_same_late_answers(policy: str, seconds: float, tmp_path: Path) -> None:
    """Before the late answer arrived, after it did, and while it waits for an exchange that fine-tunes."""
    given: dict[str, Any] = {"policy": policy, "settings": SETTINGS[policy], "rounds": 12, "quorum": QUORUM}
    killed, whole = ScheduledFleet(tmp_path / "killed", **given), ScheduledFleet(tmp_path / "whole", **given)
    slow(whole, {(2, "exchange", 0): 4.0})
    whole.run()
    slow(killed, {(2, "exchange", 0): 4.0})
    killed.run_for(seconds)
    killed.restart()
    # It answered after 8.3 s, while the second exchange was open; the first is opened again.
    slow(killed, {(2, "exchange", 0): 4.0 if seconds < 6 else 0.0})
    killed.run()
    assert parameters(killed.persistence) == parameters(whole.persistence)
    for one, other in zip(killed.fleet.devices, whole.fleet.devices, strict=True):
        assert one.holding == other.holding
    assert killed.persistence.records.counts[2].late == 1
    killed.close()
    whole.close()


def test_an_answer_that_is_too_old_does_not_count(tmp_path: Path, counted: list[list[Answer]]) -> None:
    fleet = ScheduledFleet(tmp_path, quorum=QUORUM, staleness=1, rounds=2 * EXCHANGES)
    slow(fleet, {(2, "exchange", 0): 30.0})
    fleet.run()
    line = "device-2 (node 12) is more than 1 exchanges late: its answer will not count"
    assert line in fleet.events
    assert all(2 not in [int(answer.reports.client[0]) for answer in each] for each in counted[:3])
    assert fleet.attended[2] >= 2, "it was welcomed again"
    fleet.close()
    persistence = PersistentCoordinator(Deployment(make_fleet(tmp_path / "direct", staleness=2)))
    devices = DirectFleet(tmp_path / "others")
    devices.join(persistence)
    persistence.coordinator.staleness = 1
    run_pattern(persistence, devices, {(2, 0): 1}, 1)
    persistence.coordinator.exchange = 2
    persistence.receive(2, devices.envelope(2), 1)
    (line,) = persistence.records.refusals
    assert "report rejected: it is 2 exchanges late; at most 1 count" in line
    assert 2 in persistence.coordinator.requests, "it takes part again"
    persistence.close()
    devices.close()


def test_a_slow_device_does_not_delay_the_first_exchange_nor_changes(tmp_path: Path) -> None:
    fleet = ScheduledFleet(tmp_path, quorum=QUORUM, rounds=2 * EXCHANGES)
    slow(fleet, {(2, "join", 0): 3.5, (1, "exchange", 2): 30.0})
    fleet.clock.at(12.0, lambda: request_change(fleet.folder, Requested(deadline=50.0)))
    fleet.run()
    first = next(when for when, _, kind, _ in fleet.transport.sent if kind == "exchange")
    assert first < 4.0
    assert fleet.clock.now < 30.0
    assert fleet.missed[2] == 0
    assert fleet.attended[2] >= 3, "its request came after the exchange was open, and counts for a later one"
    assert "too late" not in fleet.events
    fleet.close()


def test_a_grant_that_was_lost_is_sent_again_after_its_exchange(tmp_path: Path) -> None:
    fleet = ScheduledFleet(tmp_path, quorum=QUORUM, rounds=2 * EXCHANGES)
    slow(fleet, {(1, "exchange", 1): 20.0})
    fleet.during(1, 1, lambda: fleet.transport.disconnect(1))
    fleet.clock.at(9.0, lambda: fleet.transport.connect(1))
    fleet.run()
    assert [each.late for each in fleet.persistence.records.counts] == [0, 1, 0]
    assert fleet.persistence.records.refusals == []
    fleet.close()


def test_after_its_deadline_a_device_is_welcomed_again(tmp_path: Path) -> None:
    fleet = ScheduledFleet(tmp_path, quorum=QUORUM, rounds=24, deadline=5, travel=2, interval=2)
    fleet.transport.delay = lambda client, kind, exchange: (
        None if (client, kind, exchange) == (2, "exchange", 0) else 2.0
    )
    fleet.run()
    assert "device-2 (node 12) did not answer exchange 0 in time" in fleet.events
    assert fleet.attended[2] >= 5
    fleet.close()


def late_fleet(folder: Path, **changes: Any) -> tuple[PersistentCoordinator, DirectFleet]:
    """After an exchange whose third device has not answered."""
    persistence = PersistentCoordinator(Deployment(make_fleet(folder / "fleet", quorum=QUORUM, **changes)))
    fleet = DirectFleet(folder / "devices")
    fleet.join(persistence)
    run_pattern(persistence, fleet, {(2, 0): 9}, 1)
    return persistence, fleet


def test_after_freeze_rollback_or_a_change_late_updates_do_not_count(
    tmp_path: Path, counted: list[list[Answer]]
) -> None:
    for name, command in (
        ("freeze", Command("freeze")),
        ("rollback", Command("rollback", 0)),
        ("change", Command("change", change={"retire": ["net5"]})),
        ("model", Command("change", change={"rollback": {"net0": 0}})),
    ):
        persistence, fleet = late_fleet(tmp_path / name)
        moved = set(np.flatnonzero(persistence.coordinator.version).tolist())
        give_command(persistence.folder, command)
        persistence.run_commands()
        if name in ("change", "model"):
            assert persistence.coordinator.stragglers.outstanding == {}
        if name == "model":
            assert 0 in persistence.coordinator.stragglers.replaced
        if name in ("change", "model"):
            fleet.devices[0].receive(persistence.coordinator.welcome(0))
            persistence.receive(0, fleet.envelope(0))
        else:
            persistence.receive(2, fleet.envelope(2), 1)
        counted.clear()
        grants = persistence.coordinator.open([0])
        fleet.devices[0].receive(grants[0])
        fleet.label(0, range(2, 4))
        persistence.receive(0, fleet.envelope(0))
        persistence.close_exchange()
        late = [answer for answer in counted[-1] if int(answer.reports.client[0]) == 2]
        if name == "rollback":
            assert moved
            assert not moved & set(late[0].updates), "computed from versions that were given up"
        else:
            assert late == []
        persistence.close()
        fleet.close()


def test_the_status_shows_who_is_late(tmp_path: Path) -> None:
    persistence, fleet = late_fleet(tmp_path)
    status = read_status(persistence.folder)
    assert (status["quorum"], status["staleness"]) == (QUORUM, 20)
    assert [device["working_on"] for device in status["devices"]] == [None, None, 0]
    assert "(quorum 60 %)" in status_text(status)
    assert "still working on an earlier exchange: device-2 (exchange 0)" in status_text(status)
    persistence.receive(2, fleet.envelope(2), 1)
    persistence.save()
    status = read_status(persistence.folder)
    assert [device["late"] for device in status["devices"]] == [0, 0, 1]
    assert "still working" not in status_text(status)
    persistence.close()
    fleet.close()


def gone_after_a_grant(folder: Path, *, back: float | None) -> ScheduledFleet:
    """Devices 0 and 1 disconnect when they have the grant of exchange 1, before they answer; the server is stopped."""
    fleet = ScheduledFleet(folder, quorum=QUORUM, rounds=2 * EXCHANGES)

    def leave() -> None:
        fleet.transport.disconnect(0)
        fleet.transport.disconnect(1)
        give_command(fleet.folder, Command("freeze"))
        if back is not None:
            fleet.clock.at(fleet.clock.now + back, lambda: fleet.transport.connect(0))

    fleet.transport.delay = lambda client, kind, exchange: 3.0 * (kind == "exchange")
    fleet.during(1, 1, leave)
    fleet.run_for(DEADLINE / 2)
    return fleet


def test_changes_do_not_wait_for_devices_that_are_all_gone(tmp_path: Path) -> None:
    fleet = gone_after_a_grant(tmp_path, back=None)
    assert "exchange 1: 1 of 3 devices" in fleet.events
    assert fleet.persistence.coordinator.frozen, "long before the deadline"
    assert fleet.persistence.coordinator.stragglers.outstanding.keys() == {0, 1}, "their answers may count later"
    fleet.close()


def test_an_exchange_waits_for_a_device_whose_program_is_started_again(tmp_path: Path) -> None:
    fleet = gone_after_a_grant(tmp_path, back=6.0)
    assert "exchange 1: 2 of 3 devices" in fleet.events
    fleet.close()
