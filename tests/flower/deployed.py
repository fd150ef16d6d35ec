"""A deployment of real processes on this machine, and devices that can be killed or send faulty messages."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pytest
import torch

from ofms.coordinator.deployment import Deployment, ServerConfig, write_config
from ofms.coordinator.files import EVENTS, GRAPHS
from ofms.coordinator.graphs import export_missing, write_graphs
from ofms.coordinator.keys import add_device, make_deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.core.messages import Plan
from ofms.core.schedule import Schedule
from ofms.core.typing import AnyArray
from ofms.data.stream import Stream
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.flower.demo import device_folder, start_node
from ofms.flower.demo_device import Player
from ofms.flower.processes import Process, free_port
from ofms.flower.supervisor import Supervisor
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.policies.fleet import Fleet
from ofms.simulator.simulation import Simulation, make_simulation
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import label_samples
from tests.problems import policy_of
from tests.without_torch import WITHOUT_TORCH

INTERVAL, SEED, BANDWIDTH = 3, 5, "60%"
SETTINGS: dict[str, Any] = {"learning_rate": 0.5, "fine_tuning_rate": 0.02, "loss_bound": "raw", "window": 4}


def problem(clients: int, rounds: int) -> tuple[Dictionary, Stream]:
    """Six networks of about 20 KiB, so that sending one twice shows in the number of bytes."""
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
    """A device's program that also records its plans, which are not sent to the server."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plans: list[Plan] = []
        self.before: Callable[[int], None] = lambda exchange: None

    def record_exchange(self) -> None:
        super().record_exchange()
        self.plans.append(self.device._state.memory.plans[self.device.exchange])
        assert self.device.held_bytes <= self.device.budget
        self.before(self.device.exchange)


class Deployed:
    """A deployment on this machine; leaving its context ends all its processes."""

    def __init__(self, folder: Path, clients: int, exchanges: int, **changes: Any) -> None:
        self.folder, self.clients, self.exchanges = folder, clients, exchanges
        self.dictionary, self.stream = problem(clients, exchanges * INTERVAL)
        catalogue = self.dictionary.catalogue()
        self.budgets = np.array([(2 + client % 2) * int(catalogue.storage.max()) for client in range(clients)])
        self.fleet = folder / "fleet"
        self.dictionary.write(self.fleet / "models")
        address = f"127.0.0.1:{free_port()}"
        make_deployment(self.fleet, address, self.fleet / "models", policy="ofms-ft", rounds=exchanges * INTERVAL)
        config = ServerConfig(
            address=address,
            models="models",
            policy="ofms-ft",
            rounds=exchanges * INTERVAL,
            interval=INTERVAL,
            bandwidth=BANDWIDTH,
            seed=SEED,
            settings=SETTINGS,
            deadline=150,
        )
        write_config(self.fleet, msgspec.structs.replace(config, **changes))
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
        return self._stack.enter_context(Supervisor(self.fleet, echo=lambda line: None))

    def start_node(self, client: int) -> Process:
        """A SuperNode, which carries the messages of a device."""
        node = start_node(self.fleet, client, self.store(client))
        self._stack.callback(node.stop)
        self.nodes[client] = node
        return node

    def export_graphs(self) -> None:
        """For devices without PyTorch; before the server starts."""
        write_graphs(self.fleet / GRAPHS, export_missing(self.fleet / GRAPHS, self.dictionary, lambda line: None))

    def start_player(self, client: int, *, connect: bool = False) -> Recorder:
        """A device's program in a thread; it connects to the server itself, or needs `start_node`."""
        own = self.own_folder(client) if connect else None
        device = self._stack.enter_context(Device(self.store(client), budget=int(self.budgets[client]), connect=own))
        player = Recorder(device, self.stream.x[client], self.stream.y[client], INTERVAL)
        self.players[client] = player
        player.start()
        return player

    def store(self, client: int) -> Path:
        return self.folder / f"store-{client}"

    def own_folder(self, client: int) -> Path:
        return device_folder(self.fleet, client)

    def wait(self, condition: Callable[[], object], seconds: float = 200) -> None:
        until = time.monotonic() + seconds
        while not condition():
            self.ended = self.ended or self.server.poll()
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
        return PersistentCoordinator(Deployment(self.fleet), read_only=True).coordinator.tensors

    def simulate(self) -> Simulation:
        bandwidth = PersistentCoordinator(Deployment(self.fleet), read_only=True).coordinator.fleet.bandwidth
        schedule = Schedule(self.exchanges * INTERVAL, INTERVAL)
        fleet = Fleet(self.dictionary.catalogue(), self.budgets, bandwidth, schedule)
        policy = policy_of("ofms-ft", fleet, **SETTINGS)
        return make_simulation(policy, fleet, self.dictionary, self.stream, seed=SEED, hindsight=False)

    def assert_simulated(self, clients: list[int]) -> int:
        """Compare choices, held sets, groups and parameters with the simulator's; the bytes of models sent."""
        simulation, sent = self.simulate(), 0
        for exchange in simulation.exchanges():
            for client in clients:
                plan = self.players[client].plans[exchange.index]
                assert (
                    plan.prediction_weights.tolist() == exchange.plan.prediction_weights[client : client + 1].tolist()
                ), "choices"
                assert plan.held.tolist() == exchange.plan.held[client : client + 1].tolist(), "held sets"
                assert plan.update_weight == pytest.approx(exchange.plan.update_weight[client : client + 1]), "groups"
            sent += int((exchange.grants.sent @ self.dictionary.catalogue().storage).sum())
        for mine, theirs in zip(self.parameters(), simulation.parameters(), strict=True):
            for name in mine:
                assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-5)
        return sent


PROGRAM = """
import sys, time
import numpy as np
import ofms

store, budget, stream, interval = sys.argv[1], int(sys.argv[2]), np.load(sys.argv[3]), int(sys.argv[4])
with ofms.Device(store, budget=budget, connect=sys.argv[5] or None, backend=sys.argv[6]) as device:
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

    def __init__(self, deployed: Deployed, client: int, *, connect: bool = False, without_torch: bool = False) -> None:
        stream = deployed.folder / f"stream-{client}.npz"
        np.savez(stream, x=deployed.stream.x[client], y=deployed.stream.y[client])
        given = [str(deployed.store(client)), str(deployed.budgets[client]), str(stream), str(INTERVAL)]
        given += [str(deployed.own_folder(client)) if connect else "", "onnx" if without_torch else "auto"]
        program = WITHOUT_TORCH + PROGRAM if without_torch else PROGRAM
        self.output = deployed.folder / f"program-{client}.log"
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen([sys.executable, "-c", program, *given], stdout=output)

    def steps(self) -> int:
        return len(self.output.read_text().split())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class TamperingDevice:
    """A device whose answers are changed before they go into its outbox."""

    def __init__(self, deployed: Deployed, client: int) -> None:
        self.mailbox = Mailbox(deployed.store(client))
        self.device = Device(deployed.store(client), budget=int(deployed.budgets[client]), mail=False)
        self.x, self.y = deployed.stream.x[client], deployed.stream.y[client]

    def answer(self, deployed: Deployed, change: Callable[[Envelope], Envelope]) -> None:
        """Wait for a message, process it, and send a changed answer."""
        deployed.wait(lambda: self.mailbox.newest() is not None)
        name, content = self.mailbox.newest() or ("", b"")
        self.device.receive(content)
        self.mailbox.remove(name)
        label_open_exchange(self.device, self.x, self.y)
        envelope = decode(self.device.collect() or b"")
        self.mailbox.send(int(envelope.values["exchange"]), encode(change(envelope)))


def label_open_exchange(device: Device, x: AnyArray, y: AnyArray) -> None:
    """Label the samples of the open exchange, if one is open."""
    if device.exchange >= 0 and device._state.memory.open:
        label_samples(device, x, y, range(device.exchange * INTERVAL, (device.exchange + 1) * INTERVAL))
