"""One device in your own program: it predicts immediately, and learns when the label arrives.

    python examples/single_device.py

A fleet of one, with the server in the same program; messages are bytes, and their transport is up to you. The store is
a folder: kill the program at any time, run it again, and the device resumes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

import ofms
from ofms.coordinator import Coordinator
from ofms.models import build_module

STORE = Path("runs/single-device")
ROUNDS, SAMPLES_AN_EXCHANGE = 300, 10


def dictionary() -> ofms.Dictionary:
    """Six networks, each trained on a different mapping from two readings to a third."""
    options = {"inputs": 2, "hidden": [8], "outputs": 1}
    networks = {}
    for index in range(6):
        torch.manual_seed(index)
        network = build_module("mlp", options)
        x = torch.rand(400, 2)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            (network(x)[:, 0] - index / 5 * x[:, 0] - (1 - index / 5) * x[:, 1]).square().mean().backward()
            optimizer.step()
        networks[f"mix{index}"] = network
    architectures = dict.fromkeys(networks, ("mlp", options))
    return ofms.Dictionary.from_modules(networks, task="regression", architectures=architectures)


def main() -> None:
    shutil.rmtree(STORE, ignore_errors=True)
    models = dictionary()
    budget = 2 * int(models.catalogue().storage.max())
    settings = {"learning_rate": 5.0, "fine_tuning_rate": 0.01}
    coordinator = Coordinator(
        models,
        budgets=np.array([budget]),
        bandwidth=budget,
        rounds=ROUNDS,
        interval=SAMPLES_AN_EXCHANGE,
        policy="ofms-ft",
        settings=settings,
    )
    random = np.random.default_rng(0)
    errors = []
    with ofms.Device(STORE, budget=budget, mail=False) as device:
        device.receive(coordinator.welcome(client=0))
        for _ in range(ROUNDS):
            message = device.collect()
            if message is not None:  # The exchange is over: report, and request the next models.
                device.receive(coordinator.run_exchange({0: message})[0])
            x = random.random(2)
            answer = device.predict(x)  # Immediate, with the models held.
            y = 0.8 * x[0] + 0.2 * x[1]  # The label arrives later, or never.
            device.feedback(answer.id, y)
            errors.append((answer.value - y) ** 2)
        print(f"memory: {device.held_bytes} of {device.budget} bytes; {device.exchange + 1} exchanges")
    first, last = np.mean(errors[:100]), np.mean(errors[-100:])
    print(f"squared error of the first hundred predictions {first:.5f}, of the last hundred {last:.5f}")


if __name__ == "__main__":
    main()
