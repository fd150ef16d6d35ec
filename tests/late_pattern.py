"""A fleet in which chosen answers come some exchanges late, without clock and transport."""

from __future__ import annotations

from collections.abc import Mapping

from ofms.coordinator.persistence import PersistentCoordinator
from tests.deployments import DirectFleet

# By device and exchange: how many exchanges later its answer arrives.
Late = Mapping[tuple[int, int], int]


def run_pattern(persistence: PersistentCoordinator, fleet: DirectFleet, late: Late, exchanges: int) -> list[list[int]]:
    """Run exchanges, each closed with the answers that arrived; return the devices of each."""
    coordinator, working = persistence.coordinator, dict[int, tuple[int, int]]()
    seen = []
    for exchange in range(coordinator.exchange, exchanges):
        grants = coordinator.open()
        seen.append(sorted(grants))
        for client, content in grants.items():
            fleet.devices[client].receive(content)
            fleet.label(client, range(*coordinator.fleet.schedule.span(exchange)))
            working[client] = exchange, exchange + late.get((client, exchange), 0)
        for client, (granted, arrives) in sorted(working.items()):
            if arrives == exchange:
                persistence.receive(client, fleet.envelope(client), granted + 1)
                del working[client]
        persistence.close_exchange(working)
    return seen
