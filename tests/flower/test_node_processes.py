"""Devices that connect to a real SuperLink themselves, over TLS and with their keys, while things fail."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from ofms.coordinator.files import DEVICE_FILE
from ofms.coordinator.keys import add_device, revoke_device
from ofms.coordinator.roster import Roster, read_roster, write_roster
from ofms.coordinator.status import read_status
from ofms.device.device import Device
from tests.flower.cut import CuttableNetwork
from tests.flower.deployed import INTERVAL, Deployed, Program

pytestmark = pytest.mark.slow


def threads_of(store: Path) -> list[str]:
    return [thread.name for thread in threading.enumerate() if str(store) in thread.name]


def test_killed_processes_and_a_cut_network_do_not_change_the_result(tmp_path: Path) -> None:
    """A program is killed, the server is killed, a network is cut for longer than a node counts as connected."""
    with Deployed(tmp_path, clients=3, exchanges=6) as deployed:
        network = CuttableNetwork(deployed.server.port)
        own = deployed.own_folder(1) / DEVICE_FILE
        own.write_text(own.read_text().replace(str(deployed.server.port), str(network.port)))
        players = [deployed.start_player(client, connect=True) for client in range(2)]
        program = Program(deployed, 2, connect=True)
        holding, reached = {1: "the network is cut", 3: "the server is killed"}, dict[int, bool]()

        def hold(exchange: int) -> None:
            # No labels, so that the exchange stays open meanwhile.
            if exchange in holding:
                reached[exchange] = True
                while exchange in holding and not players[1].stopping.is_set():
                    time.sleep(0.05)

        players[1].before = hold
        try:
            deployed.wait(lambda: 1 in reached)
            network.cut()
            del holding[1]
            deployed.wait(lambda: "did not answer" in deployed.events())
            network.mend()
            deployed.wait(lambda: program.steps() > 2 * INTERVAL, 300)
            program.kill()
            program = Program(deployed, 2, connect=True)
            deployed.wait(lambda: 3 in reached)
            deployed.server.kill()
            deployed.server = deployed.start_server()
            del holding[3]
            deployed.wait(lambda: program.steps() > 4 * INTERVAL, 300)
            program.kill()
            program = Program(deployed, 2, connect=True)
            deployed.wait(lambda: deployed.ended == "completed", 300)
        finally:
            program.kill()
            network.close()
    deployed.assert_simulated([0, 1])
    status = read_status(deployed.fleet)
    assert [device["missed"] for device in status["devices"]] == [0, 0, 0]
    assert status["refusals"] == []


def test_a_device_that_is_closed_disconnects_and_may_come_back(tmp_path: Path) -> None:
    with Deployed(tmp_path, clients=2, exchanges=3) as deployed:
        player = deployed.start_player(0, connect=True)
        deployed.start_player(1, connect=True)
        deployed.wait(lambda: "exchange 0:" in deployed.events())
        deployed.wait(lambda: len(player.answers) > INTERVAL)
        player.stopping.set()
        player.join()
        done = len(player.answers)
        player.device.close()
        assert threads_of(deployed.store(0)) == []
        deployed.wait(lambda: "device-0" in deployed.events() and "disconnected" in deployed.events())
        assert read_status(deployed.fleet)["exchange"] < 3
        # The exchange is still open: the device continues it.
        budget = int(deployed.budgets[0])
        with Device(deployed.store(0), budget=budget, connect=deployed.own_folder(0)) as device:
            for step in range(device.predictions, 3 * INTERVAL):
                assert device.wait_for(lambda step=step: device.exchange >= step // INTERVAL, 300)  # type: ignore[misc]
                device.feedback(device.predict(deployed.stream.x[0, step]).id, float(deployed.stream.y[0, step]))
            deployed.finish()
    assert done >= INTERVAL
    deployed.assert_simulated([1])
    assert [device["missed"] for device in read_status(deployed.fleet)["devices"]] == [0, 0]


def test_unknown_and_revoked_keys_are_refused_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Deployed(tmp_path, clients=2, exchanges=3, deadline=60) as deployed:
        stranger = add_device(deployed.fleet, "stranger", "5", f"127.0.0.1:{deployed.server.port}")
        write_roster(deployed.fleet, Roster(read_roster(deployed.fleet).devices[:2]))
        with Device(tmp_path / "stranger", budget=10**6, connect=stranger) as device:
            deployed.wait(lambda: "not registered" in deployed.events() and "not registered" in caplog.text)
            assert not device.ready
        for client in range(2):
            deployed.start_player(client, connect=True)
        deployed.wait(lambda: "exchange 0:" in deployed.events())
        revoke_device(deployed.fleet, "device-1")
        deployed.finish()
        deployed.wait(lambda: "it is revoked" in caplog.text)
    assert "is revoked" in deployed.events()
    status = read_status(deployed.fleet)
    assert (status["exchange"], status["devices"][0]["last_exchange"]) == (3, 2)


def test_a_server_with_another_authority_is_not_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Deployed(tmp_path / "one", clients=2, exchanges=1) as deployed:
        other = Deployed(tmp_path / "other", clients=2, exchanges=1)
        folder = deployed.own_folder(0)
        shutil.copy(other.own_folder(0) / "ca.pem", folder)
        with Device(tmp_path / "store", budget=10**6, connect=folder):
            deployed.wait(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)
        assert "connected" not in deployed.events()


def test_a_device_without_pytorch_takes_part_with_the_choices_of_one_that_has_it(tmp_path: Path) -> None:
    deployed = Deployed(tmp_path, clients=2, exchanges=4)
    deployed.export_graphs()
    with deployed:
        deployed.start_player(0, connect=True)
        program = Program(deployed, 1, connect=True, without_torch=True)
        try:
            deployed.finish()
        finally:
            program.kill()
    # Parameters too: those that the second device fine-tuned.
    deployed.assert_simulated([0])
    status = read_status(deployed.fleet)
    assert [device["missed"] for device in status["devices"]] == [0, 0]
    assert status["refusals"] == []
