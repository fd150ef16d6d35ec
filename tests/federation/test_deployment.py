"""The real thing: SuperLink and SuperNode processes on loopback, with TLS and keys. Nothing is mocked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pytest
import tomli_w
import torch

from ofms.core.messages import Plan
from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.device.device import Device
from ofms.device.letters import Letter, seal, unseal
from ofms.device.mailbox import Mailbox
from ofms.federation.demo import Player, start_node
from ofms.federation.deployment import Deployment, Roster, ServerConfig, read_roster, write_roster
from ofms.federation.files import EVENTS, SERVER
from ofms.federation.keys import add_device, make_deployment, revoke_device
from ofms.federation.processes import Process, descendants, free_port
from ofms.federation.service import Service
from ofms.federation.status import read_status
from ofms.federation.supervisor import Supervisor
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.policies.protocol import Fleet
from ofms.simulator.fused import FusedSimulation
from tests.federation.test_hub import tampered, without_deltas
from tests.problems import policy_of

INTERVAL, SEED = 3, 5
SETTINGS: dict[str, Any] = {"learning_rate": 0.5, "fine_tuning_rate": 0.02, "loss_bound": "raw", "window": 4}


def problem(clients: int, rounds: int) -> tuple[Dictionary, Stream]:
    """Six networks of some 20 KiB, so that sending one twice shows."""
    architectures = {
        f"net{index}": ("mlp", {"inputs": 3, "hidden": [64 + 8 * (index % 2), 64], "outputs": 1}) for index in range(6)
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {name: build_module(*each) for name, each in architectures.items()}
    x = np.random.default_rng(1).normal(size=(clients, rounds, 3)).astype(np.float32)
    y = np.tanh(x[..., 0] + 0.3 * np.arange(clients)[:, None]).astype(np.float32)
    dictionary = Dictionary.from_modules(modules, task="regression", architectures=architectures)
    return dictionary, Stream(x, y, "regression")


class Recorder(Player):
    """A program that also keeps the device's plans, which never leave it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plans: list[Plan] = []
        self.before: Callable[[int], None] = lambda exchange: None

    def note(self) -> None:
        super().note()
        self.plans.append(self.device._memory.plans[self.device.exchange])
        assert self.device.held_bytes <= self.device.budget
        self.before(self.device.exchange)


class Deployed:
    """A deployment on this machine; everything that it starts ends with it."""

    def __init__(self, folder: Path, clients: int, exchanges: int, **changes: Any) -> None:
        self.folder, self.clients, self.exchanges = folder, clients, exchanges
        self.dictionary, self.stream = problem(clients, exchanges * INTERVAL)
        catalogue = self.dictionary.catalogue()
        self.budgets = np.array([(2 + client % 2) * int(catalogue.storage.max()) for client in range(clients)])
        self.fleet = folder / "fleet"
        self.dictionary.write(self.fleet / "models")
        address = f"127.0.0.1:{free_port()}"
        make_deployment(self.fleet, address, self.fleet / "models")
        config = ServerConfig(
            address=address,
            models="models",
            rounds=exchanges * INTERVAL,
            interval=INTERVAL,
            bandwidth="60%",
            seed=SEED,
            settings=SETTINGS,
            deadline=150,
        )
        config = msgspec.structs.replace(config, **changes)
        (self.fleet / SERVER).write_text(tomli_w.dumps(msgspec.to_builtins(config)))
        for client, budget in enumerate(self.budgets.tolist()):
            add_device(self.fleet, f"device-{client}", f"{budget}B", address)
        self.nodes: dict[int, Process] = {}
        self.players: dict[int, Recorder] = {}
        self.ended: str | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.server = self.start_server()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for player in self.players.values():
            player.stopping.set()
        self._stack.close()

    def start_server(self) -> Supervisor:
        return self._stack.enter_context(Supervisor(self.fleet, tell=lambda line: None))

    def start_node(self, client: int) -> Process:
        node = start_node(self.fleet, client, self.store(client))
        self._stack.callback(node.stop)
        self.nodes[client] = node
        return node

    def start_player(self, client: int) -> Recorder:
        device = self._stack.enter_context(Device(self.store(client), budget=int(self.budgets[client])))
        player = Recorder(device, self.stream.x[client], self.stream.y[client], INTERVAL)
        self.players[client] = player
        player.start()
        return player

    def store(self, client: int) -> Path:
        return self.folder / f"store-{client}"

    def wait(self, condition: Callable[[], object], seconds: float = 200) -> None:
        until = time.monotonic() + seconds
        while not condition():
            self.ended = self.ended or self.server.look()
            assert self.ended in (None, "completed"), self.events()
            assert time.monotonic() < until, self.events()
            time.sleep(0.1)

    def finish(self) -> None:
        self.wait(lambda: self.ended == "completed")

    def events(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.fleet / EVENTS).read_text()
        return ""

    def parameters(self) -> list[dict[str, torch.Tensor]]:
        return Service(Deployment(self.fleet), look_only=True).hub.tensors

    def simulate(self) -> FusedSimulation:
        bandwidth = Service(Deployment(self.fleet), look_only=True).hub.fleet.bandwidth
        schedule = Schedule(self.exchanges * INTERVAL, INTERVAL)
        fleet = Fleet(self.dictionary.catalogue(), self.budgets, bandwidth, schedule)
        policy = policy_of("ofms-ft", fleet, **SETTINGS)
        return FusedSimulation(policy, fleet, self.dictionary, self.stream, seed=SEED, hindsight=False)

    def assert_simulated(self, clients: list[int]) -> int:
        """Choices, held sets and groups equal the simulator's, parameters to 1e-5; the bytes of models sent."""
        simulation, sent = self.simulate(), 0
        for exchange in simulation.exchanges():
            for client in clients:
                plan = self.players[client].plans[exchange.index]
                assert plan.vote.tolist() == exchange.plan.vote[client : client + 1].tolist(), "choices"
                assert plan.held.tolist() == exchange.plan.held[client : client + 1].tolist(), "held sets"
                assert plan.pull == pytest.approx(exchange.plan.pull[client : client + 1]), "groups"
            sent += int((exchange.grants.sent @ self.dictionary.catalogue().storage).sum())
        for mine, theirs in zip(self.parameters(), simulation.parameters(), strict=True):
            for name in mine:
                assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-5)
        return sent


def processes_of(folder: Path) -> list[str]:
    """The command lines of running processes that name a folder, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and int(path.parent.name) != os.getpid():
                found.append(line)
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    assert processes_of(tmp_path) == []


def test_a_deployment_does_what_the_simulator_does(tmp_path: Path) -> None:
    with Deployed(tmp_path, clients=2, exchanges=3) as deployed:
        for client in range(2):
            deployed.start_node(client)
            deployed.start_player(client)
        deployed.finish()
    sent = deployed.assert_simulated([0, 1])
    status = read_status(deployed.fleet)
    assert (status["exchange"], status["finished"], status["refusals"]) == (3, True, [])
    everything = sum(
        int(plan.held[0] @ deployed.dictionary.catalogue().storage)
        for player in deployed.players.values()
        for plan in player.plans
    )
    letters = 2 * (1 + 3)
    assert sent < everything, "some of what is held was there already in its version"
    assert sent <= status["bytes_down"] <= sent + letters * 2048, "and that was not sent again"
    for device, budget in zip(status["devices"], deployed.budgets.tolist(), strict=True):
        assert device["held_bytes"] <= device["budget"] == budget
        assert (device["exchanges"], device["missed"]) == (3, 0)


PROGRAM = """
import sys, time
import numpy as np
import ofms

store, budget, stream, interval = sys.argv[1], int(sys.argv[2]), np.load(sys.argv[3]), int(sys.argv[4])
with ofms.Device(store, budget=budget) as device:
    for number in device.waiting:
        device.feedback(number, float(stream["y"][number]))
    for step in range(device.predictions, len(stream["x"])):
        while not (device.ready and device.exchange >= step // interval):
            device.wait_change(0.1)
        answer = device.predict(stream["x"][step])
        print(step, flush=True)
        time.sleep(0.2)
        device.feedback(answer.id, float(stream["y"][step]))
    while True:
        time.sleep(1)
"""


class Program:
    """A device's program in a process of its own, so that it can be killed."""

    def __init__(self, deployed: Deployed, client: int) -> None:
        stream = deployed.folder / f"stream-{client}.npz"
        np.savez(stream, x=deployed.stream.x[client], y=deployed.stream.y[client])
        given = [str(deployed.store(client)), str(deployed.budgets[client]), str(stream), str(INTERVAL)]
        self.output = deployed.folder / f"program-{client}.log"
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, *given], stdout=output)

    def steps(self) -> int:
        return len(self.output.read_text().split())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def kill_supernode(node: Process) -> None:
    """Kill Flower's process under `ofms deploy device`, which starts it again."""
    (pid,) = (pid for pid in descendants(node.pid) if b"flower-supernode" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_killed_comes_back_and_nothing_is_different(tmp_path: Path) -> None:
    """A SuperNode, a device and the server, each killed with -9 in mid-exchange: the simulator's result comes out."""
    with Deployed(tmp_path, clients=3, exchanges=5) as deployed:
        for client in range(3):
            deployed.start_node(client)
        players = [deployed.start_player(client) for client in range(2)]
        program = Program(deployed, 2)
        try:
            holding = {1: "SuperNode", 3: "server"}
            reached: dict[int, bool] = {}

            def hold(exchange: int) -> None:
                # Labels wait, so that the exchange is open while something is killed.
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
    assert "the server goes on with exchange 3" in deployed.events()
    assert "did not answer" in deployed.events()


class Liar:
    """A device whose letters are changed before they go into its outbox."""

    def __init__(self, deployed: Deployed, client: int) -> None:
        self.mailbox = Mailbox(deployed.store(client))
        self.device = Device(deployed.store(client), budget=int(deployed.budgets[client]), mail=False)
        self.x, self.y = deployed.stream.x[client], deployed.stream.y[client]

    def answer(self, deployed: Deployed, change: Callable[[Letter], Letter]) -> None:
        """Wait for a letter, do what it says, and send something else than what came out of it."""
        deployed.wait(lambda: self.mailbox.newest() is not None)
        name, content = self.mailbox.newest() or ("", b"")
        self.device.receive(content)
        self.mailbox.remove(name)
        see(self.device, self.x, self.y)
        letter = unseal(self.device.collect() or b"")
        self.mailbox.send(int(letter.values["exchange"]), seal(change(letter)))


def see(device: Device, x: np.ndarray, y: np.ndarray) -> None:
    """The samples of the exchange that is open, if one is."""
    if device.exchange >= 0 and device._memory.open:
        for step in range(device.exchange * INTERVAL, (device.exchange + 1) * INTERVAL):
            device.feedback(device.predict(x[step]).id, float(y[step]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_updates_that_must_not_count_change_nothing_and_end_nothing(tmp_path: Path) -> None:
    """Over the network: NaN, a wrong shape, a stale version, an unknown model; last, a letter that came before."""
    kinds = ["not finite", "a wrong shape", "a stale version", "an unknown model", "too large"]
    exchanges = len(kinds) + 1
    with Deployed(tmp_path, clients=2, exchanges=exchanges, bandwidth="200%") as deployed:
        for client in range(2):
            deployed.start_node(client)
        deployed.start_player(0)
        liar = Liar(deployed, 1)
        told: list[Letter] = []
        try:
            liar.answer(deployed, lambda letter: letter)
            for kind in kinds:
                liar.answer(deployed, lambda letter, kind=kind: told.append(letter) or spoil(letter, kind))  # type: ignore[func-returns-value]
            # Under the name of the next one, so that it is carried at all.
            liar.answer(deployed, lambda letter: told[-1])
            deployed.finish()
        finally:
            liar.device.close()
    # The same fleet without a network, in which the liar never fine-tunes.
    honest = Service(Deployment(deployed.fleet), look_only=True).deployment.hub()
    honest.deployment = "honest"
    devices = [
        Device(tmp_path / f"honest-{client}", budget=int(deployed.budgets[client]), mail=False) for client in (0, 1)
    ]
    for client, device in enumerate(devices):
        device.receive(honest.welcome(client))
    for exchange in range(exchanges + 1):
        letters = [unseal(device.collect() or b"") for device in devices]
        assert honest.hear(0, letters[0]) == []
        honest.hear(1, without_deltas(letters[1]) if exchange else letters[1])
        if exchange:
            honest.close()
        if exchange < exchanges:
            for client, grant in honest.open().items():
                devices[client].receive(grant)
                see(devices[client], deployed.stream.x[client], deployed.stream.y[client])
    for device in devices:
        device.close()
    refusals = "\n".join(read_status(deployed.fleet)["refusals"])
    expected = ["is not finite", "is [2, 2, 2], not", "of version", "unknown; the", "its norm is", "is asked for now"]
    for line in expected:
        assert line in refusals
    assert refusals.count("device-1 (node ") == refusals.count("\n") + 1, "each with its node, none of the honest one"
    for mine, theirs in zip(deployed.parameters(), honest.tensors, strict=True):
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-6)


def spoil(letter: Letter, kind: str) -> Letter:
    """Every update of a letter, spoilt in one way."""
    if kind != "a wrong shape":
        return tampered(letter)[kind][0]
    arrays = {
        key: np.zeros((2, 2, 2), np.float32) if key.startswith("delta.") else array
        for key, array in letter.arrays.items()
    }
    return Letter(letter.kind, letter.values, arrays)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_strangers_are_turned_away_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A node whose key is not registered, one without TLS, one that is revoked, and requests to start a run."""
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
        if "devices join" in line:
            break
    time.sleep(5)
    process.send_signal(number)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert "interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("ofms-demo-*")) == []
