"""A deployment that has run some exchanges: one device is not connected, a message of another was rejected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from tests.deployments import DirectFleet, make_fleet


@contextmanager
def watched_fleet(folder: Path, exchanges: int = 4) -> Iterator[Path]:
    """The folder of the deployment, whose server counts as running within the block."""
    persistence = PersistentCoordinator(Deployment(make_fleet(folder / "fleet")))
    fleet = DirectFleet(folder / "devices")
    try:
        persistence.nodes = {0: 10, 1: 11}
        for device in fleet.devices[:2]:
            device._state.reveals = "use"
        fleet.join(persistence)
        for _ in range(exchanges):
            fleet.exchange(persistence)
            for client in range(3):
                persistence.count(client, down=1000, up=10 * client)
        persistence.refuse(1, "message rejected: <script>alert(1)</script>")
        persistence.save()
        yield persistence.folder
    finally:
        persistence.close()
        fleet.close()
