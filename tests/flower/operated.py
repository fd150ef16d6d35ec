"""A deployment as an operator runs it: `ofms deploy server` and programs of devices, which are started again when they
end, as systemd does."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from ofms.coordinator.changes import Requested
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import DEVICE_FILE, EVENTS
from ofms.coordinator.operation import request_change
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.status import read_status
from ofms.data.stream import Stream
from ofms.flower.processes import Process
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.simulator.phases import Phases
from ofms.simulator.simulation import Simulation, make_simulation
from ofms.storage.files import write_whole
from tests.changing import deployed_setup
from tests.flower.cut import CuttableNetwork
from tests.flower.deployed import BANDWIDTH, INTERVAL, SEED, SETTINGS, Deployed

MOST_EXCHANGES = 400
# What is waited for arrives within seconds on an idle machine; only a fleet that is stuck reaches this.
PATIENCE = 900.0
_CLOSED = re.compile(r"exchange (\d+): \d+ of \d+ devices")

PROGRAM = """
import json, sys, time
import numpy as np
import ofms

store, budget, stream, interval, connect, limit = sys.argv[1:]
stream, budget, interval = np.load(stream), int(budget), int(interval)

def say(**what):
    print(json.dumps(what), flush=True)

def persistently(call, *given):
    while True:
        try:
            return call(*given)
        except OSError as error:
            say(failed=str(error))
            time.sleep(0.2)

def open_device():
    try:
        return ofms.Device(store, budget=budget, connect=connect, backend="onnx")
    except ofms.InvalidInput as error:
        sys.exit(f"error: {error}")

with open_device() as device:
    say(opened=device.predictions, waiting=device.waiting)
    for number in device.waiting:
        persistently(device.feedback, number, float(stream["y"][number]))
    while True:
        step = device.predictions
        if step >= interval * int(open(limit).read()):
            time.sleep(0.1)
        elif not device.ready or device.exchange < step // interval:
            device.wait_change(0.1)
        else:
            plan = device._state.memory.plans[device.exchange]
            say(exchange=device.exchange, held=plan.held[0].tolist(), weights=plan.prediction_weights[0].tolist(),
                updates=plan.update_weight[0].tolist())
            answer = persistently(device.predict, stream["x"][step])
            persistently(device.feedback, answer.id, float(stream["y"][step]))
            persistently(device.flush)
            # Only now has its source to remember this label no longer.
            say(acknowledged=answer.id)
            time.sleep(0.05)
"""

# The clock of a process, which can be set: adds the seconds in a file to it.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *ahead;
__attribute__((constructor)) static void map(void) {
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    ahead = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*own)(clockid_t, struct timespec *);
    if (!own) own = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = own(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) && ahead) now->tv_sec += *ahead;
    return failed;
}
"""


class SetClock:
    """The clock of a process that is started with its environment."""

    def __init__(self, folder: Path, name: str) -> None:
        source, self._library, self._file = folder / "clock.c", folder / "clock.so", folder / f"{name}.clock"
        source.write_text(CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)
        self._file.write_bytes(bytes(ctypes.sizeof(ctypes.c_long)))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_AHEAD": str(self._file)}

    def set(self, seconds: int) -> None:
        with open(self._file, "r+b") as file:
            file.write(ctypes.c_long(seconds))


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Callable[[], Callable[[], None]]]:
    """Mount a small disk; yields a function that fills it up and returns one that makes room again."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", folder], check=True)

    def fill() -> Callable[[], None]:
        stop, filler = threading.Event(), folder / "filler"

        def keep_full() -> None:
            # Also what others free meanwhile.
            with open(filler, "ab", buffering=0) as file:
                while not stop.wait(0.01):
                    for size in (2**16, 2**12, 2**9):
                        try:
                            while not stop.is_set():
                                file.write(bytes(size))
                        except OSError:
                            continue

        thread = threading.Thread(target=keep_full, daemon=True)
        thread.start()

        def make_room() -> None:
            stop.set()
            thread.join()
            filler.unlink()

        return make_room

    try:
        yield fill
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class Operated:
    """A fleet whose processes are started again when they end; leaving its context ends all of them."""

    def __init__(self, folder: Path, clients: int, **changes: Any) -> None:
        changes = {"rounds": None, "deadline": 600, "quorum": 1.0} | changes
        self.deployed = Deployed(folder, clients, MOST_EXCHANGES, **changes)
        self.deployed.export_graphs()
        architecture = ("mlp", {"inputs": 3, "hidden": [72, 64], "outputs": 1})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            # A dictionary has at least two; the first one is added later.
            modules = {name: build_module(*architecture) for name in ("further", "another")}
        architectures = dict.fromkeys(modules, architecture)
        further = Dictionary.from_modules(modules, task="regression", architectures=architectures)
        self.further = replace(further, models=further.models[:1])
        self.folder, self.fleet, self.clients = folder, self.deployed.fleet, clients
        self.limit = folder / "limit"
        self.set_limit(MOST_EXCHANGES)
        self.environments: dict[object, dict[str, str]] = {}
        self.processes: dict[object, Process] = {}
        self.restarts: dict[object, int] = {}
        self.paused: set[object] = set()
        self._guard, self._stopping = threading.RLock(), threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Operated:
        for who in ("server", *range(self.clients)):
            self.restarts[who] = -1
        for client in range(self.clients):
            stream = self.deployed.stream
            np.savez(self.folder / f"stream-{client}.npz", x=stream.x[client], y=stream.y[client])
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._keeper.join()
        for process in self.processes.values():
            process.kill()

    def _keep(self) -> None:
        """Start what does not run."""
        while not self._stopping.wait(0.2):
            with self._guard:
                for who in self.restarts:
                    if who not in self.paused and (who not in self.processes or self.processes[who].ended):
                        if who in self.processes:
                            self.processes[who].kill()
                        self.processes[who] = self._start(who)
                        self.restarts[who] += 1

    def _start(self, who: object) -> Process:
        log, home = self.folder / f"{who}.log", self.folder / f"home-{who}"
        if who == "server":
            command = [sys.executable, "-m", "ofms", "deploy", "server", str(self.fleet)]
        else:
            assert isinstance(who, int)
            given = [self.store(who), self.deployed.budgets[who], self.folder / f"stream-{who}.npz", INTERVAL]
            given += [self.deployed.own_folder(who), self.limit]
            command = [sys.executable, "-c", PROGRAM, *map(str, given)]
        return Process(command, home, log, **self.environments.get(who, {}))

    def store(self, client: int) -> Path:
        return self.deployed.store(client)

    def behind(self, network: CuttableNetwork, client: int) -> None:
        """Connect a device through a network; before it starts."""
        own = self.deployed.own_folder(client) / DEVICE_FILE
        own.write_text(own.read_text().replace(str(self.port), str(network.port)))

    @property
    def port(self) -> int:
        text = (self.fleet / "server.toml").read_text()
        found = re.search(r'address = "127\.0\.0\.1:(\d+)"', text)
        assert found is not None, text
        return int(found[1])

    def set_limit(self, exchanges: int) -> None:
        """The exchanges after which devices label nothing."""
        write_whole(self.limit, str(exchanges).encode())

    def kill(self, kind: str, client: int = 0) -> None:
        """Kill processes of a kind with SIGKILL; those of the same machine or the operator start them again."""
        with self._guard:
            if kind == "everything":
                # Nothing may react before all are dead.
                victims = [process for who in list(self.processes) for process in self._tree(who)]
                for victim in victims:
                    _signal(victim, signal.SIGSTOP)
                for victim in victims:
                    _signal(victim, signal.SIGKILL)
            else:
                who: object = client if kind == "device" else "server"
                part = {"device": "", "server app": "flwr-serverapp", "SuperLink": "ofms.flower.superlink"}[kind]
                victims = [each for each in self._tree(who) if part in " ".join(_command(each))]
                for victim in victims[:1] if kind == "device" else victims:
                    _signal(victim, signal.SIGKILL)

    def pause(self, who: object) -> None:
        """Kill a process, and do not start it again before `resume`."""
        with self._guard:
            self.paused.add(who)
            self.processes[who].kill()

    def resume(self, who: object) -> None:
        self.paused.discard(who)

    def _tree(self, who: object) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.processes[who].pid)
            return [root, *root.children(recursive=True)]
        except (KeyError, psutil.NoSuchProcess):
            return []

    def closed(self) -> list[int]:
        """The exchanges closed so far, in the order of the log."""
        try:
            return [int(each) for each in _CLOSED.findall(self.events())]
        except FileNotFoundError:
            return []

    def longest_exchange(self) -> float:
        """The most seconds by the server's clock between the ends of two exchanges."""
        times = [
            datetime.fromisoformat(line[:20]).timestamp() for line in self.events().splitlines() if _CLOSED.search(line)
        ]
        return max(after - before for before, after in pairwise(times))

    def events(self) -> str:
        return (self.fleet / EVENTS).read_text(errors="replace")

    def wait(self, condition: Callable[[], object]) -> float:
        """Wait for a condition; the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + PATIENCE, self.describe()
            time.sleep(0.1)
        return time.monotonic() - began

    def wait_for_exchanges(self, count: int = 1) -> float:
        """Wait until some more exchanges are closed; the seconds that it took."""
        before = len(set(self.closed()))
        return self.wait(lambda: len(set(self.closed())) >= before + count)

    def describe(self) -> str:
        tails = [f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")]
        return "\n".join([f"restarts {self.restarts}", self.events()[-6000:], *tails])

    def lines(self, client: int) -> list[dict[str, Any]]:
        """What a device's program said, in all its lives."""
        text = (self.folder / f"{client}.log").read_text(errors="replace")
        # A kill may cut off a line, to which the next one is appended.
        return [json.loads(line) for line in re.findall(r"^\{.*\}$", text, re.MULTILINE)]

    def finish(self) -> int:
        """Let the fleet end an exchange after the current one; the number of exchanges."""
        last = max(self.closed(), default=0) + 3
        self.set_limit(last)
        self.wait(lambda: last - 1 in self.closed())
        # Written after the line in the log.
        self.wait(lambda: read_status(self.fleet)["exchange"] >= last)
        return last

    def assert_labels_kept(self) -> None:
        """Every label that was acknowledged was known in the next life of the program."""
        for client in range(self.clients):
            acknowledged: set[int] = set()
            for line in self.lines(client):
                if "acknowledged" in line:
                    assert line["acknowledged"] not in acknowledged, f"device {client}: given twice"
                    acknowledged.add(line["acknowledged"])
                elif "opened" in line:
                    known = set(range(line["opened"])) - set(line["waiting"])
                    assert acknowledged <= known, f"device {client}: lost {acknowledged - known}"
            assert acknowledged

    def add_model(self) -> None:
        """Add another model to the running fleet, as `ofms deploy models add` does."""
        self.further.write(self.folder / "further")
        request_change(self.fleet, Requested(), models=self.folder / "further")

    def retire_model(self, name: str) -> None:
        request_change(self.fleet, Requested(retire=[name]))

    def simulate(self, exchanges: int) -> Simulation:
        """A simulation of so many exchanges, with the events of the deployment."""
        deployed, rounds = self.deployed, exchanges * INTERVAL
        events = PersistentCoordinator(Deployment(self.fleet), read_only=True).beginning.events
        whole, stream = deployed.dictionary, deployed.stream
        if any(event.add for event in events):
            whole = replace(whole, models=(*whole.models, *self.further.models))
        stream = Stream(stream.x[:, :rounds], stream.y[:, :rounds], stream.task)
        setup = deployed_setup("ofms-ft", whole, stream, deployed.budgets.tolist(), events, SETTINGS, interval=INTERVAL)
        phases = Phases.of(replace(setup, bandwidth=BANDWIDTH), events)
        first = phases.first
        return make_simulation(
            first.built, first.fleet, whole, stream, seed=SEED, hindsight=False, phases=phases if events else None
        )

    def assert_simulated(self, exchanges: int) -> None:
        """Choices, held sets, groups and parameters are those of a simulation of so many exchanges."""
        simulation, compared = self.simulate(exchanges), set()
        plans = [[line for line in self.lines(client) if "exchange" in line] for client in range(self.clients)]
        for exchange in simulation.exchanges():
            plan = exchange.plan
            for client, line in ((client, line) for client, own in enumerate(plans) for line in own):
                if line["exchange"] == exchange.index:
                    where = f"device {client}, exchange {exchange.index}"
                    # Before a model was added, the devices did not know it.
                    known = len(line["held"])
                    assert not plan.held[client, known:].any(), where
                    assert line["held"] == plan.held[client, :known].tolist(), f"held sets: {where}"
                    weights = plan.prediction_weights[client, :known].tolist()
                    assert line["weights"] == pytest.approx(weights, abs=1e-4), f"choices: {where}"
                    updates = plan.update_weight[client, :known].tolist()
                    assert line["updates"] == pytest.approx(updates, rel=1e-3), f"groups: {where}"
                    compared.add((exchange.index, client))
        assert len(compared) == exchanges * self.clients
        for mine, theirs in zip(self.deployed.parameters(), simulation.parameters(), strict=True):
            for name in mine:
                assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-4)


def moments(kinds: list[str], count: int, seed: int, longest: float) -> Iterator[tuple[str, float]]:
    """Kinds in random order, `count` times each, and how long to wait before each."""
    draws = random.Random(seed)
    order = [kind for kind in kinds for _ in range(count)]
    draws.shuffle(order)
    for kind in order:
        yield kind, draws.uniform(0, longest)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
