"""Memory of the processes of a deployment, and of an idle process for comparison.

    python benchmarks/deployment_memory.py

A real deployment on loopback: a SuperLink, two devices with MNIST's two-block networks, three exchanges. One device
connects itself, the other one has a SuperNode. Each process's largest resident set is read from /proc while it runs;
a device's program is a separate process, as in production.
Needs the extra `flower`, and Linux.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ofms
from networks import MNIST
from ofms.coordinator.keys import add_device, make_deployment
from ofms.drawing.tables import format_table
from ofms.flower.demo import device_folder, start_node
from ofms.flower.processes import descendants, free_port
from ofms.flower.supervisor import Supervisor
from ofms.models.zoo import build_module
from ofms.runs.units import human_bytes

CLIENTS, EXCHANGES, INTERVAL = 2, 3, 5

PROGRAM = """
import numpy as np
import sys
import ofms

images = np.random.default_rng(0).random((1000, 1, 28, 28), dtype=np.float32)
with ofms.Device(sys.argv[1], budget=int(sys.argv[2]), connect=(sys.argv[4:] or [None])[0]) as device:
    for step, image in enumerate(images):
        while not (device.ready and device.exchange >= step // int(sys.argv[3])):
            device.wait_change(0.1)
        device.feedback(device.predict(image).id, step % 10)
"""

NAMES = {
    "ofms.flower.superlink": "SuperLink",
    "flwr-serverapp": "server app, while the server runs",
    "flower.supernode": "SuperNode",
    "flwr-clientapp": "client app, during an exchange",
    "deploy device": "ofms deploy device, which keeps the SuperNode running",
    "devices/device-0": "a device's program that connects itself, with PyTorch and its models",
    "import ofms": "a device's program with a SuperNode, with PyTorch and its models",
    "flower-superexec": "SuperExec, one per SuperLink or SuperNode",
}


def name_of(pid: int) -> str | None:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return next((name for part, name in NAMES.items() if part in line), None)


def largest_resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> int:
    architecture = MNIST.architectures[1]
    architectures = {f"net{index}": architecture for index in range(20)}
    modules = {name: build_module(*each) for name, each in architectures.items()}
    dictionary = ofms.Dictionary.from_modules(modules, task="classification", architectures=architectures)
    largest = int(dictionary.catalogue().storage.max())
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet, address = folder / "fleet", f"127.0.0.1:{free_port()}"
        dictionary.write(folder / "models")
        make_deployment(
            fleet,
            address,
            folder / "models",
            policy="ofms-ft",
            settings={"learning_rate": 0.5, "fine_tuning_rate": 1e-4},
            interval=INTERVAL,
            rounds=EXCHANGES * INTERVAL,
        )
        for client in range(CLIENTS):
            add_device(fleet, f"device-{client}", "5", address)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Supervisor(fleet, echo=lambda line: None))
            pids = [server.pid]
            for client in range(CLIENTS):
                store = folder / f"store-{client}"
                given = [str(store), str(5 * largest), str(INTERVAL)]
                if client == 0:
                    given.append(str(device_folder(fleet, client)))
                else:
                    node = start_node(fleet, client, store)
                    stack.callback(node.stop)
                    pids.append(node.pid)
                program = subprocess.Popen([sys.executable, "-c", PROGRAM, *given])
                stack.callback(program.wait)
                stack.callback(program.kill)
                pids.append(program.pid)
            while server.poll() is None:
                for pid in {each for root in pids for each in (root, *descendants(root))}:
                    with contextlib.suppress(OSError, StopIteration):
                        if kind := name_of(pid):
                            found[kind] = max(found.get(kind, 0), largest_resident(pid))
                time.sleep(0.1)
    code = "import torch, numpy; print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    bare = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    rows = [[name, human_bytes(size)] for name, size in sorted(found.items(), key=lambda each: each[0])]
    rows.append(["for comparison: a process that imports PyTorch and does nothing", human_bytes(bare)])
    rows.append(["for comparison: the most that a device's models may take", human_bytes(5 * largest)])
    print(format_table(["largest resident set", ""], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
