"""A device's predictions compared with the bare forward pass, on MNIST's two-block network, one thread.

python benchmarks/device.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import ofms
from networks import MNIST
from ofms.coordinator.coordinator import Coordinator
from ofms.drawing.tables import format_table
from ofms.models.zoo import build_module

LEAST_RATIO = 0.8
# Short alternating runs: other load on the machine then affects both.
TURNS, PREDICTIONS = 120, 20


def main() -> int:
    torch.set_num_threads(1)
    architecture = MNIST.architectures[1]
    architectures = {f"net{index}": architecture for index in range(4)}
    modules = {name: build_module(*each).eval() for name, each in architectures.items()}
    dictionary = ofms.Dictionary.from_modules(modules, task="classification", architectures=architectures)
    budget = 2 * int(dictionary.catalogue().storage.max())
    coordinator = Coordinator(dictionary, budgets=np.array([budget]), bandwidth=budget, rounds=10**6, policy="ofms-ft")
    images = np.random.default_rng(0).random((PREDICTIONS, 1, 28, 28), dtype=np.float32)
    inputs = torch.from_numpy(images)
    bare, own = [], []
    with tempfile.TemporaryDirectory() as folder, ofms.Device(Path(folder), budget=budget, mail=False) as device:
        device.receive(coordinator.welcome(0))
        request = device.collect()
        device.receive(coordinator.run_exchange({0: request or b""})[0])
        network = modules["net0"]
        for _ in range(TURNS):
            began = time.perf_counter()
            with torch.inference_mode():
                for number in range(PREDICTIONS):
                    network(inputs[number : number + 1])
            bare.append(PREDICTIONS / (time.perf_counter() - began))
            began = time.perf_counter()
            for image in images:
                device.predict(image)
            own.append(PREDICTIONS / (time.perf_counter() - began))
    rates = statistics.median(bare), statistics.median(own)
    ratio = rates[1] / rates[0]
    rows = [
        ["the bare network", f"{rates[0]:,.0f}", ""],
        ["Device.predict", f"{rates[1]:,.0f}", f"{ratio:.2f}"],
    ]
    print(format_table(["", "predictions/s", "of the bare network"], rows))
    return int(ratio < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
