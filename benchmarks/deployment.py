"""Time and processor of exchanges on Flower: devices that connect themselves, and devices with a SuperNode each.

    python benchmarks/deployment.py [--devices 3] [--many 50] [--exchanges 5] [--idle 60]

Real deployments on loopback, one after the other: a SuperLink and devices with small networks, which label their
samples as fast as they can. All devices of a deployment are threads of one program. The figures are per exchange after
the first, from the server's event log and /proc; the SuperLink's processor time is without the server app, which is a
process of its own. Devices without labels are idle. Needs the extra `flower`, and Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
        config.deadline, config.quorum = 600, quorum
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
            self.server.poll()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--many", type=int, default=50)
    parser.add_argument("--exchanges", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60.0)
    given = parser.parse_args()
    rows = []
    for name, devices, connects in (
        ("a SuperNode each", given.devices, False),
        ("connected themselves", given.devices, True),
        ("connected themselves", given.many, True),
    ):
        if not devices:
            continue
        with tempfile.TemporaryDirectory() as folder:
            with Fleet(Path(folder), devices, connects=connects, exchanges=given.exchanges) as fleet:
                found = fleet.measure()
                idle = fleet.measure_idle(given.idle) if connects and given.idle else None
            shares = ["", ""] if idle is None else [f"{100 * share:.2f} %" for share in idle]
            rows.append([f"{devices} devices, {name}", f"{found.seconds:.1f} s", f"{found.superlink:.2f} s", *shares])
        print(*rows[-1], sep="; ", file=sys.stderr)
    columns = ["", "exchange", "SuperLink's processor per device", "idle device", "SuperLink per idle device"]
    print(format_table(columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
