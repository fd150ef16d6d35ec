"""Devices without PyTorch beside devices with it, on MNIST's networks: memory, predictions, fine-tuning.

    python benchmarks/edge.py [DICTIONARY]

Memory is that of a device's whole program in its own process, without a carrier of messages: twenty networks in the
dictionary, five of the largest held, three exchanges with fine-tuning. Speed is that of both implementations in turn in
one process, on one thread. With a DICTIONARY, its models take the place of untrained ones. Needs the extra `export`,
and Linux.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ofms
from networks import MNIST
from ofms.compute.client import Architecture, Description, make_client_compute
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.graphs import Graphs, export_missing, read_graphs, write_graphs
from ofms.device.mailbox import Mailbox
from ofms.drawing.tables import format_table
from ofms.models.zoo import build_module
from ofms.policies.local_updates import GradientStep
from ofms.runs.units import human_bytes

EXCHANGES, INTERVAL, WINDOW = 3, 20, 50
MOST_BYTES, LEAST_RATIO = 100 * 2**20, 1.0
TURNS, PREDICTIONS = 60, 20

PROGRAM = """
import sys
import numpy as np
import ofms

store, budget, backend, interval, exchanges = sys.argv[1:]
random = np.random.default_rng(0)
with ofms.Device(store, budget=int(budget), backend=backend) as device:
    for step in range(int(interval) * int(exchanges)):
        while not (device.ready and device.exchange == step // int(interval)):
            device.wait_change(0.05)
        device.feedback(device.predict(random.random((1, 28, 28), dtype=np.float32)).id, step % 10)
    while device.outgoing()[0] < int(exchanges):
        device.wait_change(0.05)
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    shared = dict(line.split(":", 1) for line in open("/proc/self/smaps_rollup") if ":" in line)
print(*(1024 * int(each.split()[0]) for each in (status["VmRSS"], status["VmHWM"], shared["Pss"])))
"""


def untrained() -> ofms.Dictionary:
    architectures = {f"net{index}": MNIST.architectures[index % 2] for index in range(20)}
    modules = {name: build_module(*each) for name, each in architectures.items()}
    return ofms.Dictionary.from_modules(modules, task="classification", architectures=architectures)


def memory(coordinator: Coordinator, budget: int, backend: str) -> list[int]:
    """Resident, largest resident and proportional size of a device's program after some exchanges."""
    with tempfile.TemporaryDirectory() as store:
        mailbox = Mailbox(Path(store))
        mailbox.deliver(coordinator.welcome(0))
        given = [store, str(budget), backend, str(INTERVAL), str(EXCHANGES)]
        with subprocess.Popen([sys.executable, "-c", PROGRAM, *given], stdout=subprocess.PIPE, text=True) as program:
            for exchange in range(EXCHANGES):
                while (request := mailbox.answer(exchange)) is None:
                    if program.poll() is not None:
                        raise SystemExit("the device's program ended")
                    time.sleep(0.02)
                mailbox.deliver(coordinator.run_exchange({0: request})[0])
            output, _ = program.communicate()
    return [int(each) for each in output.split()]


def rates(turns: int, *functions: Callable[[], object]) -> list[float]:
    """Median seconds of functions that are called in turn: other load on the machine then affects all."""
    took: list[list[float]] = [[] for _ in functions]
    for _ in range(turns):
        for place, function in enumerate(functions):
            began = time.perf_counter()
            function()
            took[place].append(time.perf_counter() - began)
    return [statistics.median(each) for each in took]


def speeds(dictionary: ofms.Dictionary, graphs: dict[int, Graphs]) -> list[list[str]]:
    """Predictions and fine-tuning steps of both implementations, for each architecture."""
    models = [
        Architecture(model.name, model.architecture, model.options, model.trainable, graphs[place].key)
        for place, model in enumerate(dictionary.models)
    ]
    arrays = {
        f"{each.key}.{kind}": np.frombuffer(content, np.uint8)
        for each in graphs.values()
        for kind, content in each.contents.items()
    }
    description = Description(dictionary.task, models, arrays)
    both = [make_client_compute(description, "torch"), make_client_compute(description, "onnx")]
    images = np.random.default_rng(0).random((WINDOW, 1, 28, 28), dtype=np.float32)
    labels, step = np.arange(WINDOW) % 10, GradientStep(0.1, window=WINDOW, warm_up=0)
    rows = []
    for model in {graphs[place].key: place for place in range(len(dictionary))}.values():
        tensors = {name: tensor.numpy() for name, tensor in dictionary.models[model].tensors.items()}

        def predict(compute: Any, model: int = model) -> None:
            for place in range(PREDICTIONS):
                compute.outputs(model, images[place : place + 1])

        def tune(compute: Any, model: int = model, tensors: Any = tensors) -> None:
            compute.update(model, tensors, images, labels, np.ones(WINDOW), 1.0, step)

        for compute in both:
            compute.hold(model, tensors)
            predict(compute)
            tune(compute)
        one, other = rates(TURNS, lambda: predict(both[0]), lambda: predict(both[1]))
        first, second = rates(TURNS // 4, lambda: tune(both[0]), lambda: tune(both[1]))
        rows.append(
            [
                dictionary.models[model].name,
                f"{PREDICTIONS / one:,.0f}",
                f"{PREDICTIONS / other:,.0f}",
                f"{one / other:.2f}",
                f"{1000 * first:.1f}",
                f"{1000 * second:.1f}",
                f"{first / second:.2f}",
            ]
        )
    return rows


def main() -> int:
    torch.set_num_threads(1)
    dictionary = ofms.Dictionary.read(sys.argv[1]) if len(sys.argv) > 1 else untrained()
    budget = 5 * int(dictionary.catalogue().storage.max())
    with tempfile.TemporaryDirectory() as name:
        write_graphs(Path(name), export_missing(Path(name), dictionary))
        graphs = read_graphs(Path(name), dictionary)
    found = {}
    for backend in ("torch", "onnx"):
        coordinator = Coordinator(
            dictionary, budgets=np.array([budget]), bandwidth=budget, interval=INTERVAL, graphs=lambda _: graphs
        )
        found[backend] = memory(coordinator, budget, backend)
    rows = [[backend, *(human_bytes(each) for each in sizes)] for backend, sizes in found.items()]
    print(format_table(["a device's program", "resident", "largest", "proportional"], rows))
    print(f"\nof it, models at most {human_bytes(budget)}; bytes of the welcome: {len(coordinator.welcome(0)):,}\n")
    measured = speeds(dictionary, graphs)
    heads = [
        "",
        "predictions/s, PyTorch",
        "ONNX Runtime",
        "ratio",
        f"ms per step on {WINDOW}, PyTorch",
        "ONNX",
        "ratio",
    ]
    print(format_table(heads, measured))
    slower = any(float(row[3]) < LEAST_RATIO for row in measured)
    return int(slower or found["onnx"][1] > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
