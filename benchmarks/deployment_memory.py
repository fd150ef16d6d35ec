"""Memory of the processes of a deployment, and of an idle process for comparison.

    python benchmarks/deployment_memory.py

A real deployment on loopback: a SuperLink, three devices with MNIST's two-block networks, four exchanges of twenty
labels, ten a second. One device connects itself, one does so without PyTorch, one has a SuperNode. Each process's
resident set is read from /proc while it runs: the median of what was read every tenth of a second, and the largest; a
device's program is a separate process, as in production, and is read from its first models on. The one without PyTorch
has the environment that docs/deploy.md recommends for it, and finds only what `ofms[edge,node]` requires: httpx imports
trio if it is installed, as it is where tests are run.
Needs the extras `flower` and `export`, and Linux.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import ofms
from networks import MNIST
from ofms.coordinator.files import GRAPHS
from ofms.coordinator.graphs import export_missing, write_graphs
from ofms.coordinator.keys import add_device, make_deployment
from ofms.drawing.tables import format_table
from ofms.flower.demo import device_folder, start_node
from ofms.flower.processes import descendants, free_port
from ofms.flower.supervisor import Supervisor
from ofms.models.zoo import build_module
from ofms.runs.units import human_bytes

CLIENTS, EXCHANGES, INTERVAL = 3, 4, 20
# The C library gives freed memory back, instead of keeping it for every thread, and Python leaves out docstrings.
LEAN_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "PYTHONOPTIMIZE": "2",
}
MOST_BYTES = 100 * 2**20
LEAN = "a device's program that connects itself, without PyTorch, with its models"

PROGRAM = """
import sys
import time
import numpy as np
import ofms

store, budget, interval, backend, connect = sys.argv[1:]
random = np.random.default_rng(0)
with ofms.Device(store, budget=int(budget), backend=backend, connect=connect or None) as device:
    for step in range(1000):
        while not (device.ready and device.exchange >= step // int(interval)):
            device.wait_change(0.1)
        image = random.random((1, 28, 28), dtype=np.float32)
        device.feedback(device.predict(image).id, step % 10)
        time.sleep(0.1)
"""

NAMES = {
    "ofms.flower.superlink": "SuperLink",
    "flwr-serverapp": "server app, while the server runs",
    "flower.supernode": "SuperNode",
    "flwr-clientapp": "client app, during an exchange",
    "deploy device": "ofms deploy device, which keeps the SuperNode running",
    "devices/device-1": LEAN,
    "devices/device-0": "a device's program that connects itself, with PyTorch and its models",
    "import ofms": "a device's program with a SuperNode, with PyTorch and its models",
    "flower-superexec": "SuperExec, one per SuperLink or SuperNode",
}


def name_of(pid: int) -> str | None:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return next((name for part, name in NAMES.items() if part in line), None)


def resident(pid: int) -> tuple[int, int]:
    """Bytes now, and the most so far."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, most = (1024 * int(status[field].split()[0]) for field in ("VmRSS", "VmHWM"))
    return now, most


def required(requirement: Requirement, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The installed distributions that a requirement needs, by name, itself among them."""
    own = found[requirement.name.lower()] = distribution(requirement.name)
    for each in map(Requirement, own.requires or []):
        wanted = any(
            each.marker is None or each.marker.evaluate({"extra": extra}) for extra in requirement.extras | {""}
        )
        if wanted and (each.name.lower() not in found or each.extras):
            required(each, found)
    return found


def device_python(folder: Path) -> Path:
    """The Python of a virtual environment as on a device: links to what its extras require, and to nothing else."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "ofms").symlink_to(Path(ofms.__file__).parent)
    for each in required(Requirement("ofms[edge,node]"), {}).values():
        for name in {path.parts[0] for path in each.files or []} - {"..", "__pycache__"}:
            if not name.endswith(".pth") and not (packages / name).exists():
                (packages / name).symlink_to(Path(str(each.locate_file(name))))
    return folder / "bin" / "python"


def lean_environment(python: Path, bytecode: Path) -> dict[str, str]:
    """The environment of the program without PyTorch, with bytecode of all its modules, as after its first start."""
    usual = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    found = usual | LEAN_ENVIRONMENT | {"PYTHONPYCACHEPREFIX": str(bytecode)}
    modules = "ofms.device.device, ofms.flower.node, ofms.compute.onnx_client, ofms.policies.ofms_ft, onnxruntime"
    subprocess.run([python, "-c", f"import {modules}, numpy.random"], check=True, env=found)
    return found


def main() -> int:
    architecture = MNIST.architectures[1]
    architectures = {f"net{index}": architecture for index in range(20)}
    modules = {name: build_module(*each) for name, each in architectures.items()}
    dictionary = ofms.Dictionary.from_modules(modules, task="classification", architectures=architectures)
    largest = int(dictionary.catalogue().storage.max())
    found: dict[str, list[tuple[int, int]]] = {}
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
        write_graphs(fleet / GRAPHS, export_missing(fleet / GRAPHS, dictionary, lambda line: None))
        for client in range(CLIENTS):
            add_device(fleet, f"device-{client}", "5", address)
        with contextlib.ExitStack() as stack:
            python = device_python(folder / "environment")
            lean = lean_environment(python, folder / "bytecode")
            server = stack.enter_context(Supervisor(fleet, echo=lambda line: None))
            pids, stores = [server.pid], dict[int, Path]()
            for client in range(CLIENTS):
                store = folder / f"store-{client}"
                given = [str(store), str(5 * largest), str(INTERVAL), "onnx" if client == 1 else "torch"]
                if client < CLIENTS - 1:
                    given.append(str(device_folder(fleet, client)))
                else:
                    given.append("")
                    node = start_node(fleet, client, store)
                    stack.callback(node.stop)
                    pids.append(node.pid)
                program = subprocess.Popen(
                    [python if client == 1 else sys.executable, "-c", PROGRAM, *given],
                    env=lean if client == 1 else None,
                )
                stack.callback(program.wait)
                stack.callback(program.kill)
                pids.append(program.pid)
                stores[program.pid] = store
            while server.poll() is None:
                for pid in {each for root in pids for each in (root, *descendants(root))}:
                    with contextlib.suppress(OSError, KeyError):
                        if (kind := name_of(pid)) and (pid not in stores or any(stores[pid].glob("models/*"))):
                            found.setdefault(kind, []).append(resident(pid))
                time.sleep(0.1)
    code = "import torch, numpy; print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    bare = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    sizes = {
        kind: (int(statistics.median(now for now, _ in seen)), max(most for _, most in seen))
        for kind, seen in sorted(found.items())
    }
    rows = [[kind, *map(human_bytes, each)] for kind, each in sizes.items()]
    rows.append(["for comparison: a process that imports PyTorch and does nothing", human_bytes(bare), ""])
    rows.append(["for comparison: the most that a device's models may take", human_bytes(5 * largest), ""])
    print(format_table(["resident set", "median", "largest"], rows))
    return int(max(sizes[LEAN]) > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
