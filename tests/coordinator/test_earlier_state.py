"""A deployment written by an earlier version: `protocol-2.zip` holds a server's state and its devices' stores.

They are those of `tests.deployments.make_fleet` after two exchanges.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from tests.deployments import DirectFleet, make_fleet, parameters

STATE = Path(__file__).with_name("protocol-2.zip")


def run_exchanges(persistence: PersistentCoordinator, fleet: DirectFleet, count: int) -> list[list[float]]:
    """Run exchanges, close the server and its devices; all parameters of each model."""
    for _ in range(count):
        fleet.exchange(persistence)
    fleet.close()
    persistence.close()
    models = (sorted(model.items()) for model in parameters(persistence))
    return [[number for _, numbers in model for number in numbers] for model in models]


def test_a_fleet_of_protocol_2_continues(tmp_path: Path) -> None:
    with zipfile.ZipFile(STATE) as archive:
        archive.extractall(tmp_path)
    persistence = PersistentCoordinator(Deployment(tmp_path / "fleet"))
    assert persistence.coordinator.exchange == 2
    assert persistence.coordinator.fleet.schedule.exchanges == 6
    continued = run_exchanges(persistence, DirectFleet(tmp_path / "devices"), 2)
    other = PersistentCoordinator(Deployment(make_fleet(tmp_path / "new")))
    devices = DirectFleet(tmp_path / "others")
    devices.join(other)
    for found, expected in zip(continued, run_exchanges(other, devices, 4), strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
