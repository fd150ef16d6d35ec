"""A deployment whose server is scheduled with a fake clock and a transport in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import EVENTS
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.scheduler import Scheduler
from ofms.coordinator.transport import Kind
from ofms.storage.envelope import decode
from tests.deployments import DirectFleet, make_fleet
from tests.memory_transport import FakeClock, MemoryTransport

EXCHANGES, DEADLINE, TRAVEL = 3, 60, 20


class ScheduledFleet:
    """A deployment of three devices whose messages go through memory."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        given: dict[str, Any] = {"rounds": 2 * EXCHANGES, "deadline": DEADLINE, "travel": TRAVEL} | changes
        self.folder = make_fleet(folder / "fleet", **given)
        self.clock = FakeClock()
        self.persistence = PersistentCoordinator(Deployment(self.folder))
        self.fleet = DirectFleet(folder / "devices")
        self.transport = MemoryTransport(self.clock, self.persistence, self.fleet)
        self.scheduler = Scheduler(self.transport, self.persistence, self.clock)
        self._patch = pytest.MonkeyPatch()

    def run(self) -> None:
        self.scheduler.run()
        assert self.persistence.coordinator.finished

    def run_for(self, seconds: float) -> None:
        """Run the server for some seconds, then stop it wherever it is."""

        def stop() -> None:
            raise KeyboardInterrupt

        self.clock.at(self.clock.now + seconds, stop)
        with pytest.raises(KeyboardInterrupt):
            self.scheduler.run()

    def restart(self) -> None:
        """A new server of the same deployment, from its checkpoint; the devices keep running."""
        self.persistence.close()
        self.persistence = PersistentCoordinator(Deployment(self.folder))
        self.transport = MemoryTransport(self.clock, self.persistence, self.fleet)
        self.scheduler = Scheduler(self.transport, self.persistence, self.clock)

    def during(self, exchange: int, client: int, action: Callable[[], object]) -> None:
        """Run an action when a device has the grant of an exchange, before its answer arrives."""
        answer = self.transport.answer

        def watched(receiver: int, kind: Kind, content: bytes) -> bytes | None:
            if (receiver, kind) == (client, "exchange") and decode(content).values["exchange"] == exchange:
                self._patch.undo()
                self.clock.at(self.clock.now + 0.25, action)
            return answer(receiver, kind, content)

        self._patch.setattr(self.transport, "answer", watched)

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
