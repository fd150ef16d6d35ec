"""Time and processor of exchanges on Flower: devices that connect themselves, and devices with a SuperNode each.

    python benchmarks/deployment.py [--devices 3] [--many 50] [--exchanges 5] [--idle 60] [--before CHECKOUT]

Real deployments on loopback, one after the other: a SuperLink and devices with small networks, which label their
samples as fast as they can. All devices of a deployment are threads of one program. The figures are per exchange after
the first, from the server's event log and /proc; the SuperLink's processor time is without the server app, which is a
process of its own. Devices without labels are idle. Needs the extra `flower`, and Linux.

`--before` is a checkout of an earlier version with the same dependencies, whose devices have a SuperNode each: it is
measured first and last, and exchanges are compared with the mean of both. `git worktree add CHECKOUT db8a02f` is the
last version that sent a record of Flower for each array. Targets that are missed are printed, and the status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import ofms
from ofms.coordinator.deployment import read_config, write_config
from ofms.coordinator.files import EVENTS
from ofms.coordinator.keys import add_device, make_deployment
from ofms.drawing.tables import format_table
from ofms.flower.demo import start_node
from ofms.flower.processes import free_port
from ofms.flower.supervisor import Supervisor
from ofms.models.zoo import build_module
from ofms.storage.files import write_whole

INTERVAL, MODELS, BUDGET = 20, 20, 5
# Targets: seconds of the SuperLink's processor, shares of a core, and how much faster than the earlier version.
MOST_SUPERLINK, MOST_IDLE, LEAST_SPEED_UP = 0.3, 0.01, 10.0
# In the event log.
CLOSED = r"exchange \d+: \d+ of \d+ devices"
# About 19 KiB, as the networks of the demo.
ARCHITECTURE = ("mlp", {"inputs": 64, "hidden": [64], "outputs": 10})

# Arguments: the folder, the number of devices, the budget, how many exchanges to label, whether devices connect, and
# a file with the seconds that each device takes for the labels of an exchange, which may change meanwhile.
PROGRAM = """
import sys, threading, time
import numpy as np
import ofms

folder, devices, budget, exchanges = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
connects, paces = sys.argv[5] == "connect", sys.argv[6]

def play(client):
    random = np.random.default_rng(client)
    own = {"connect": f"{folder}/fleet/devices/device-{client}"} if connects else {}
    with ofms.Device(f"{folder}/store-{client}", budget=budget, **own) as device:
        last = -1
        for _ in range(exchanges):
            # A device that is late takes part in fewer exchanges than others.
            while not (device.ready and device.exchange > last):
                device.wait_change(5.0)
            last = device.exchange
            for step in range(20):
                time.sleep(float(open(paces).read().split(",")[client]) / 20)
                device.feedback(device.predict(random.random(64, dtype=np.float32)).id, step % 10)
        threading.Event().wait()

threads = [threading.Thread(target=play, args=(client,), daemon=True) for client in range(devices)]
for thread in threads:
    thread.start()
threading.Event().wait()
"""


@dataclass(frozen=True)
class Measured:
    """Per exchange: seconds, and the SuperLink's processor seconds per device."""

    seconds: float
    superlink: float


def processor_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Fleet:
    """A deployment whose devices are threads of one program; leaving its context ends all processes."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        *,
        connects: bool,
        exchanges: int,
        quorum: float = 1.0,
    ) -> None:
        self.folder, self.devices, self.connects, self.exchanges = folder, devices, connects, exchanges
        self.set_paces([0.0] * devices)
        architectures = {f"net{index}": ARCHITECTURE for index in range(MODELS)}
        modules = {name: build_module(*each) for name, each in architectures.items()}
        dictionary = ofms.Dictionary.from_modules(modules, task="classification", architectures=architectures)
        self.budget = BUDGET * int(dictionary.catalogue().storage.max())
        dictionary.write(folder / "models")
        self.fleet, address = folder / "fleet", f"127.0.0.1:{free_port()}"
        make_deployment(self.fleet, address, folder / "models", interval=INTERVAL)
        config = read_config(self.fleet)
        config.deadline = 600
        # Versions without a quorum wait for all devices, as a quorum of 1 does.
        if quorum < 1 or hasattr(config, "quorum"):
            config.quorum = quorum
        write_config(self.fleet, config)
        for client in range(devices):
            add_device(self.fleet, f"device-{client}", str(BUDGET), address)
        self._stack = ExitStack()

    def __enter__(self) -> Fleet:
        self.server = self._stack.enter_context(Supervisor(self.fleet, echo=lambda line: None))
        if not self.connects:
            for client in range(self.devices):
                self._stack.callback(start_node(self.fleet, client, self.folder / f"store-{client}").stop)
        given = [str(self.folder), str(self.devices), str(self.budget), str(self.exchanges)]
        given += ["connect" if self.connects else "mailbox", str(self._paces)]
        self.program = subprocess.Popen([sys.executable, "-c", PROGRAM, *given])
        self._stack.callback(self.program.wait)
        self._stack.callback(self.program.kill)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def _paces(self) -> Path:
        return self.folder / "paces"

    def set_paces(self, seconds: Sequence[float]) -> None:
        """The seconds that each device takes for the labels of an exchange, from its next label on."""
        write_whole(self._paces, ",".join(map(str, seconds)).encode())

    def closed(self) -> int:
        """How many exchanges are closed."""
        log = self.fleet / EVENTS
        return len(re.findall(CLOSED, log.read_text())) if log.exists() else 0

    def wait_for_exchange(self, number: int) -> None:
        """Wait until an exchange is closed."""
        while self.closed() <= number:
            if (how := self.server.poll()) is not None:
                raise RuntimeError(f"the server app ended: {how}")
            if self.program.poll() is not None:
                raise RuntimeError(f"the devices' program ended with status {self.program.returncode}")
            time.sleep(0.05)

    def measure(self, first: int = 0) -> Measured:
        """Seconds and processor time per exchange, after the `first`."""
        self.wait_for_exchange(first)
        started, spent = time.monotonic(), processor_seconds(self.server.pid)
        self.wait_for_exchange(self.exchanges - 1)
        later = self.exchanges - 1 - first
        seconds = (time.monotonic() - started) / later
        return Measured(seconds, (processor_seconds(self.server.pid) - spent) / later / self.devices)

    def measure_idle(self, seconds: float) -> tuple[float, float]:
        """Shares of a core that an idle device takes of its program and of the SuperLink."""
        pids = (self.program.pid, self.server.pid)
        time.sleep(10)
        started, before = time.monotonic(), [processor_seconds(pid) for pid in pids]
        time.sleep(seconds)
        spent = [processor_seconds(pid) - each for pid, each in zip(pids, before, strict=True)]
        passed = (time.monotonic() - started) * self.devices
        return spent[0] / passed, spent[1] / passed


@dataclass(frozen=True)
class Case:
    """A deployment to measure."""

    name: str
    devices: int
    connects: bool

    def measure(self, exchanges: int, idle: float) -> tuple[Measured, tuple[float, float] | None]:
        with (
            tempfile.TemporaryDirectory() as folder,
            Fleet(Path(folder), self.devices, connects=self.connects, exchanges=exchanges) as fleet,
        ):
            found = fleet.measure()
            return found, fleet.measure_idle(idle) if self.connects and idle else None


def measure_before(checkout: Path, devices: int, exchanges: int) -> Measured:
    """The same deployment, with a SuperNode for each device, of an earlier version."""
    command = [sys.executable, __file__, "--only-supernodes", "--devices", str(devices), "--exchanges", str(exchanges)]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Measured(**json.loads(output))


def row(name: str, found: Measured, idle: tuple[float, float] | None = None) -> list[str]:
    shares = ["", ""] if idle is None else [f"{100 * share:.2f} %" for share in idle]
    cells = [name, f"{found.seconds:.1f} s", f"{found.superlink:.2f} s", *shares]
    print(*cells, sep="; ", file=sys.stderr, flush=True)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--many", type=int, default=50)
    parser.add_argument("--exchanges", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only-supernodes", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    with_nodes = Case(f"{given.devices} devices, a SuperNode each", given.devices, connects=False)
    if given.only_supernodes:
        print(json.dumps(asdict(with_nodes.measure(given.exchanges, 0)[0])))
        return 0
    before, rows, targets = [], [], []

    def measure_earlier() -> None:
        if given.before:
            before.append(measure_before(given.before, given.devices, given.exchanges))
            rows.append(row(f"{with_nodes.name}, the earlier version", before[-1]))

    measure_earlier()
    connected = [
        Case(f"{devices} devices, connected themselves", devices, connects=True)
        for devices in (given.devices, given.many)
        if devices
    ]
    seconds = []
    for case in (with_nodes, *connected):
        found, idle = case.measure(given.exchanges, given.idle)
        rows.append(row(case.name, found, idle))
        if case.connects:
            seconds.append(found.seconds)
            targets.append((f"{case.name}: SuperLink, s per device and exchange", found.superlink, MOST_SUPERLINK))
        if idle is not None:
            targets.append((f"{case.name}: an idle device, share of a core", idle[0], MOST_IDLE))
    measure_earlier()
    columns = ["", "exchange", "SuperLink's processor per device", "idle device", "SuperLink per idle device"]
    print(format_table(columns, rows))
    for name, figure, most in targets:
        print(f"{'ok   ' if figure <= most else 'SHORT'} {name}: {figure:.4f} (at most {most})")
    met = [figure <= most for _, figure, most in targets]
    if before:
        ratio = statistics.mean(each.seconds for each in before) / seconds[0]
        met.append(ratio >= LEAST_SPEED_UP)
        verdict = "ok   " if met[-1] else "SHORT"
        print(f"{verdict} an exchange, times as fast as the earlier version: {ratio:.1f} (at least {LEAST_SPEED_UP})")
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
