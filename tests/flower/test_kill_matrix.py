"""A deployment of real processes on which everything is inflicted that docs/reliability.md names.

`ofms deploy server` with its SuperLink and server app, and devices that connect themselves, each a process that is
started again when it ends. After each fault the fleet must continue; in the end choices, held sets and parameters are
those of the simulator with the same events, and no label is lost that a program had acknowledged.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from ofms.coordinator.deployment import read_config
from ofms.coordinator.status import read_status
from tests.flower.cut import CuttableNetwork
from tests.flower.deployed import INTERVAL
from tests.flower.operated import Operated, SetClock, moments, small_disk

pytestmark = pytest.mark.slow

CLIENTS = 3
KINDS = ["server app", "SuperLink", "device", "everything"]
HOURS = 3600


def assert_unharmed(operated: Operated) -> None:
    """End the fleet, and compare it with the simulator."""
    exchanges = operated.finish()
    operated.assert_labels_kept()
    status = read_status(operated.fleet)
    assert [device["samples"] for device in status["devices"]] == [exchanges * INTERVAL] * CLIENTS, "each label once"
    assert [device["missed"] for device in status["devices"]] == [0] * CLIENTS
    assert status["refusals"] == []
    operated.assert_simulated(exchanges)


@pytest.mark.parametrize("kills", [10])
def test_kills_at_ten_moments_of_each_kind_of_process(kills: int, tmp_path: Path) -> None:
    with Operated(tmp_path, CLIENTS) as operated:
        operated.wait_for_exchanges(2)
        slowest = dict.fromkeys(KINDS, 0.0)
        for number, (kind, delay) in enumerate(moments(KINDS, kills, seed=7, longest=3.0)):
            # The next kill may come before the change is in force.
            if number == kills:
                operated.add_model()
            if number == 3 * kills:
                operated.retire_model("net1")
            time.sleep(delay)
            operated.kill(kind, client=number % CLIENTS)
            slowest[kind] = max(slowest[kind], operated.wait_for_exchanges())
        assert_unharmed(operated)
        print({kind: f"{seconds:.0f} s" for kind, seconds in slowest.items()}, f"restarts {operated.restarts}")
        assert operated.restarts["server"] >= 2 * kills


@pytest.mark.parametrize("kills", [3])
def test_kills_of_the_default_policy_that_does_not_wait_for_all(kills: int, tmp_path: Path) -> None:
    """Late hedging with a quorum: who answers in time differs from run to run, so there is no simulation to compare."""
    operated = Operated(tmp_path, CLIENTS, policy="late-hedge", settings={}, quorum=0.6, deadline=60)
    with operated:
        operated.wait_for_exchanges(2)
        for number, (kind, delay) in enumerate(moments(KINDS, kills, seed=8, longest=3.0)):
            time.sleep(delay)
            operated.kill(kind, client=number % CLIENTS)
            operated.wait_for_exchanges()
        exchanges = operated.finish()
        operated.assert_labels_kept()
        status = read_status(operated.fleet)
        assert status["refusals"] == []
        assert all(device["samples"] <= exchanges * INTERVAL for device in status["devices"]), "each label once"
        assert all(device["samples"] > 0 for device in status["devices"])


def test_an_exchange_closes_at_its_deadline_without_a_device_that_is_cut_off(tmp_path: Path) -> None:
    deadline = 30
    with Operated(tmp_path, CLIENTS, deadline=deadline) as operated:
        network = CuttableNetwork(operated.port)
        operated.behind(network, 1)
        operated.wait_for_exchanges(2)
        network.cut()
        operated.wait_for_exchanges(3)
        assert "2 of 3 devices" in operated.events()
        assert operated.restarts["server"] == 0
        travel = read_config(operated.fleet).travel
        # Of a machine so slow that an exchange takes twice as long, nothing is said.
        assert deadline <= operated.longest_exchange() <= 2 * (deadline + travel)
        network.mend()
        operated.wait(lambda: "3 of 3 devices" in operated.events().splitlines()[-1])
        operated.finish()
        operated.assert_labels_kept()
        assert read_status(operated.fleet)["refusals"] == []
        network.close()


def test_a_network_that_is_cut_for_a_minute(tmp_path: Path) -> None:
    with Operated(tmp_path, CLIENTS) as operated:
        network = CuttableNetwork(operated.port)
        operated.behind(network, 1)
        operated.wait_for_exchanges(2)
        network.cut()
        time.sleep(60)
        network.mend()
        operated.wait_for_exchanges(2)
        assert_unharmed(operated)
        network.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_clocks_that_are_set_by_hours(tmp_path: Path) -> None:
    """While they differ, the SuperLink rejects the device's signatures; once they agree, the fleet continues."""
    clocks = {who: SetClock(tmp_path, str(who)) for who in ("server", 1)}
    operated = Operated(tmp_path, CLIENTS)
    operated.environments = {who: clock.environment for who, clock in clocks.items()}
    with operated:
        operated.wait_for_exchanges(2)
        for who, hours in ((1, 9), (1, -9), ("server", 9), ("server", -9)):
            clocks[who].set(hours * HOURS)
            time.sleep(15)
            clocks[who].set(0)
            operated.wait_for_exchanges(2)
        assert_unharmed(operated)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a small disk")
def test_disks_that_are_full_during_exchanges(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "store-1", 3) as fill_device,
        small_disk(tmp_path / "fleet", 40) as fill_server,
        Operated(tmp_path, CLIENTS) as operated,
    ):
        operated.wait_for_exchanges(2)
        for fill in (fill_device, fill_server) * 2:
            make_room = fill()
            time.sleep(20)
            make_room()
            operated.wait_for_exchanges(2)
        # Of a label, or of a grant if the device had none to label.
        assert "No space left" in (tmp_path / "1.log").read_text()
        assert_unharmed(operated)


def damage(path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(len(content) // 2, len(content))] ^= 4
    path.write_bytes(content)


def test_a_damaged_checkpoint_and_a_damaged_store(tmp_path: Path) -> None:
    """Both are refused in one line; from a copy, or with an empty store, the fleet continues."""
    with Operated(tmp_path, CLIENTS) as operated:
        operated.wait_for_exchanges(2)
        operated.pause("server")
        state = operated.fleet / "state"
        shutil.copytree(state, tmp_path / "copy")
        damage(state / "checkpoint.safetensors", 1)
        operated.resume("server")
        operated.wait(lambda: "its content changed" in (tmp_path / "server.log").read_text())
        operated.pause("server")
        shutil.rmtree(state)
        shutil.copytree(tmp_path / "copy", state)
        operated.resume("server")
        operated.wait_for_exchanges(2)
        operated.pause(1)
        damage(operated.store(1) / "snapshot.safetensors", 2)
        operated.resume(1)
        operated.wait(lambda: "its content changed" in (tmp_path / "1.log").read_text())
        operated.pause(1)
        shutil.rmtree(operated.store(1))
        before = operated.events().count("3 of 3 devices")
        operated.resume(1)
        operated.wait(lambda: operated.events().count("3 of 3 devices") > before)
        assert "Traceback" not in (tmp_path / "server.log").read_text() + (tmp_path / "1.log").read_text()
