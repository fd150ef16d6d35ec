"""Deployments of real SuperLink and SuperNode processes on the loopback interface, with TLS and keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.keys import add_device, revoke_device
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.roster import Roster, read_roster, write_roster
from ofms.coordinator.status import read_status
from ofms.device.device import Device
from ofms.flower.processes import Process, descendants, free_port
from ofms.storage.envelope import Envelope, decode
from tests.flower.deployed import INTERVAL, Deployed, Program, TamperingDevice, label_open_exchange
from tests.tampering import changed, tampered, without_deltas


def test_a_deployment_agrees_with_the_simulator(tmp_path: Path) -> None:
    """One device has a SuperNode, the other one connects itself."""
    with Deployed(tmp_path, clients=2, exchanges=3) as deployed:
        deployed.start_node(0)
        deployed.start_player(0)
        deployed.start_player(1, connect=True)
        deployed.finish()
    sent = deployed.assert_simulated([0, 1])
    status = read_status(deployed.fleet)
    assert (status["exchange"], status["finished"], status["refusals"]) == (3, True, [])
    everything = sum(
        int(plan.held[0] @ deployed.dictionary.catalogue().storage)
        for player in deployed.players.values()
        for plan in player.plans
    )
    envelopes = 2 * (1 + 3)
    assert sent < everything, "some of the models held had been sent before"
    assert sent <= status["bytes_down"] <= sent + envelopes * 2048, "and were not sent again"
    for device, budget in zip(status["devices"], deployed.budgets.tolist(), strict=True):
        assert device["held_bytes"] <= device["budget"] == budget
        assert (device["exchanges"], device["missed"]) == (3, 0)


def kill_supernode(node: Process) -> None:
    """Kill Flower's process below `ofms deploy device`, which restarts it."""
    (pid,) = (pid for pid in descendants(node.pid) if b"flower.supernode" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_killed_processes_restart_without_changing_the_result(tmp_path: Path) -> None:
    """A SuperNode, a device and the server are killed in mid-exchange: the result is still the simulator's."""
    with Deployed(tmp_path, clients=3, exchanges=5) as deployed:
        for client in range(3):
            deployed.start_node(client)
        players = [deployed.start_player(client) for client in range(2)]
        program = Program(deployed, 2)
        try:
            holding = {1: "SuperNode", 3: "server"}
            reached: dict[int, bool] = {}

            def hold(exchange: int) -> None:
                # No labels, so that the exchange stays open while a process is killed.
                if exchange in holding:
                    reached[exchange] = True
                    while exchange in holding and not players[0].stopping.is_set():
                        time.sleep(0.05)

            players[0].before = hold
            deployed.wait(lambda: 1 in reached)
            kill_supernode(deployed.nodes[0])
            del holding[1]
            deployed.wait(lambda: program.steps() > 2 * INTERVAL)
            program.kill()
            program = Program(deployed, 2)
            deployed.wait(lambda: 3 in reached)
            deployed.server.kill()
            deployed.server = deployed.start_server()
            del holding[3]
            deployed.finish()
        finally:
            program.kill()
    deployed.assert_simulated([0, 1])
    status = read_status(deployed.fleet)
    assert [device["missed"] for device in status["devices"]] == [0, 0, 0]
    assert "the server resumes at exchange 3" in deployed.events()
    assert "did not answer" in deployed.events()


@pytest.mark.slow
def test_a_fleet_without_a_horizon_is_stopped_and_resumes(tmp_path: Path) -> None:
    """It agrees with the simulator as long as the devices have samples; then it waits for more."""
    with Deployed(tmp_path, clients=2, exchanges=4, rounds=None) as deployed:
        for client in range(2):
            deployed.start_node(client)
            deployed.start_player(client)
        deployed.wait(lambda: "exchange 1: 2 of 2 devices" in deployed.events())
        deployed.server.__exit__(None, None, None)
        assert "the server has reached its horizon" not in deployed.events()
        deployed.server = deployed.start_server()
        deployed.wait(lambda: "exchange 3: 2 of 2 devices" in deployed.events())
        deployed.assert_simulated([0, 1])
        status = read_status(deployed.fleet)
        assert (status["exchange"], status["exchanges"], status["finished"]) == (4, None, False)
        assert deployed.ended is None
    assert "the server resumes at exchange" in deployed.events()


@pytest.mark.slow
def test_faulty_updates_over_the_network_are_refused_and_the_run_continues(tmp_path: Path) -> None:
    """NaN, a wrong shape, a stale version, an unknown model, a large norm; last, an answer sent before."""
    kinds = ["not finite", "a wrong shape", "a stale version", "an unknown model", "too large"]
    exchanges = len(kinds) + 1
    with Deployed(tmp_path, clients=2, exchanges=exchanges, bandwidth="200%") as deployed:
        for client in range(2):
            deployed.start_node(client)
        deployed.start_player(0)
        tampering = TamperingDevice(deployed, 1)
        answered: list[Envelope] = []

        def record_and_corrupt(kind: str, envelope: Envelope) -> Envelope:
            answered.append(envelope)
            return corrupt(envelope, kind)

        try:
            tampering.answer(deployed, lambda envelope: envelope)
            for kind in kinds:
                tampering.answer(deployed, partial(record_and_corrupt, kind))
            # An answer to the exchange before, with the name and opening of this one, so that it is carried.
            tampering.answer(deployed, lambda envelope: changed(answered[-1], opening=envelope.values["opening"]))
            deployed.finish()
        finally:
            tampering.device.close()
    # The same fleet without a network, in which the tampering device never fine-tunes.
    honest = PersistentCoordinator(Deployment(deployed.fleet), read_only=True).deployment.coordinator()
    honest.deployment = "honest"
    devices = [
        Device(tmp_path / f"honest-{client}", budget=int(deployed.budgets[client]), mail=False) for client in (0, 1)
    ]
    for client, device in enumerate(devices):
        device.receive(honest.welcome(client))
    for exchange in range(exchanges + 1):
        envelopes = [decode(device.collect() or b"") for device in devices]
        assert honest.receive(0, envelopes[0]) == []
        honest.receive(1, without_deltas(envelopes[1]) if exchange else envelopes[1])
        if exchange:
            honest.close()
        if exchange < exchanges:
            for client, grant in honest.open().items():
                devices[client].receive(grant)
                label_open_exchange(devices[client], deployed.stream.x[client], deployed.stream.y[client])
    for device in devices:
        device.close()
    refusals = "\n".join(read_status(deployed.fleet)["refusals"])
    expected = ["is not finite", "is [2, 2, 2], not", "the granted", "unknown; the", "its norm", "expected exchange"]
    for line in expected:
        assert line in refusals
    assert refusals.count("device-1 (node ") == refusals.count("\n") + 1, "all with the node of one device"
    for mine, theirs in zip(deployed.parameters(), honest.tensors, strict=True):
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-6)


def corrupt(envelope: Envelope, kind: str) -> Envelope:
    """The answer with all its updates corrupted in one way."""
    if kind != "a wrong shape":
        return tampered(envelope)[kind][0]
    arrays = {
        key: np.zeros((2, 2, 2), np.float32) if key.startswith("delta.") else array
        for key, array in envelope.arrays.items()
    }
    return Envelope(envelope.kind, envelope.values, arrays)


@pytest.mark.slow
def test_unknown_nodes_are_refused_and_the_run_continues(tmp_path: Path) -> None:
    """A node whose key is not registered, one without TLS, and one that is revoked."""
    with Deployed(tmp_path, clients=3, exchanges=3, deadline=60) as deployed:
        add_device(deployed.fleet, "device-9", "5", f"127.0.0.1:{deployed.server.port}")
        write_roster(deployed.fleet, Roster(read_roster(deployed.fleet).devices[:3]))
        deployed.budgets = np.append(deployed.budgets, [1] * 7)
        stranger = deployed.start_node(9)
        plain = [str(Path(sys.executable).parent / "flower-supernode"), "--insecure", "--port", str(free_port())]
        plain += ["--superlink", f"127.0.0.1:{deployed.server.port}"]
        bare = Process(plain, tmp_path / "bare", tmp_path / "bare.log")
        try:
            deployed.wait(lambda: "not registered" in deployed.events() and "without TLS" in deployed.events())
        finally:
            bare.stop()
            stranger.stop()
        for client in range(3):
            deployed.start_node(client)
            deployed.start_player(client)
        deployed.wait(lambda: "exchange 0:" in deployed.events())
        revoke_device(deployed.fleet, "device-2")
        deployed.finish()
    events = deployed.events()
    assert "device-2 (node " in events
    assert "is revoked" in events
    status = read_status(deployed.fleet)
    assert status["exchange"] == 3
    assert [device["last_exchange"] for device in status["devices"][:2]] == [2, 2]
    assert status["devices"][2]["last_exchange"] < 2
    assert status["devices"][2]["revoked"]
    assert len(status["devices"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_leaves_nothing_behind_when_it_is_interrupted(number: int, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ofms", "deploy", "demo"], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "devices are joining" in line:
            break
    else:
        pytest.fail("it never said that devices join")
    time.sleep(5)
    process.send_signal(number)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 128 + number
    assert "interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("ofms-demo-*")) == []
