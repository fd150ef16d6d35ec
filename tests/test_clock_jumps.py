"""Clocks that are set, by hours in either direction, while programs run and between their runs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from ofms.coordinator.changes import Requested
from ofms.coordinator.commands import Command, give_command
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.operation import request_change
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.device.device import Device
from tests.deployments import make_fleet, parameters
from tests.devices import granted_device
from tests.scheduled_fleet import ScheduledFleet

HOURS = 3600.0


class SetClock:
    """The clock of the machine, which can be set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        now, nanoseconds = time.time, time.time_ns
        patch.setattr(time, "time", lambda: now() + self.ahead)
        patch.setattr(time, "time_ns", lambda: nanoseconds() + int(1e9 * self.ahead))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return SetClock(monkeypatch)


@pytest.mark.parametrize("ahead", [-9 * HOURS, 9 * HOURS, 4e8])
def test_a_device_keeps_inputs_that_wait_for_labels(ahead: float, clock: SetClock, tmp_path: Path) -> None:
    device, _ = granted_device(tmp_path, "ofms-ft")
    device.longest_wait = HOURS
    first = device.predict(np.array([0.1, 0.2, 0.3]))
    clock.ahead = ahead
    second = device.predict(np.array([0.1, 0.2, 0.4]))
    assert device.waiting == [first.id, second.id]
    assert device.feedback(first.id, 0.5)
    device.close()
    # Set back to right, and opened again: times do not go back.
    clock.ahead = 0.0
    with Device(device.store, budget=device.budget, mail=False, longest_wait=HOURS) as again:
        third = again.predict(np.array([0.1, 0.2, 0.5]))
        assert again.waiting == [second.id, third.id]
        assert again.feedback(second.id, 0.5)


def test_commands_given_after_a_clock_was_set_back_are_executed_in_order(clock: SetClock, tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    persistence = PersistentCoordinator(Deployment(folder))
    give_command(folder, Command("freeze"))
    persistence.run_commands()
    assert [persistence.coordinator.frozen] == [True]
    clock.ahead = -5 * HOURS
    give_command(folder, Command("thaw"))
    clock.ahead = -7 * HOURS
    request_change(folder, Requested(deadline=7.0))
    request_change(folder, Requested(deadline=8.0))
    persistence.run_commands()
    assert [persistence.coordinator.frozen] == [False]
    assert persistence.deadline == 8.0
    persistence.close()


def test_a_server_s_exchanges_do_not_depend_on_the_clock(clock: SetClock, tmp_path: Path) -> None:
    usual, jumping = ScheduledFleet(tmp_path / "usual"), ScheduledFleet(tmp_path / "jumping")
    usual.run()
    for at, ahead in ((2.0, 9 * HOURS), (3.0, -9 * HOURS), (5.0, 4e8)):
        jumping.clock.at(at, lambda ahead=ahead: setattr(clock, "ahead", ahead))  # type: ignore[misc]
    jumping.run()
    assert jumping.clock.now == usual.clock.now
    assert parameters(jumping.persistence) == parameters(usual.persistence)
    assert jumping.missed == [0, 0, 0]
    usual.close()
    jumping.close()
