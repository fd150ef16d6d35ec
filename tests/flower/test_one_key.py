"""Two programs with the key of one device, on a real SuperLink."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.coordinator.status import read_status
from ofms.device.device import Device
from tests.flower.deployed import Deployed

pytestmark = pytest.mark.slow


def test_a_second_program_with_the_key_of_a_connected_device_is_refused_and_named(tmp_path: Path) -> None:
    with Deployed(tmp_path, clients=2, exchanges=4) as deployed:
        for client in range(2):
            deployed.start_player(client, connect=True)
        deployed.wait(lambda: "exchange 0:" in deployed.events(), 300)
        with Device(tmp_path / "twin", budget=int(deployed.budgets[1]), connect=deployed.own_folder(1)) as device:
            deployed.wait(lambda: "with the key of device-1 was rejected: another one is" in deployed.events(), 300)
            assert not device.ready
            deployed.finish()
    deployed.assert_simulated([0, 1])
    assert [device["refused"] for device in read_status(deployed.fleet)["devices"]] == [0, 0]
