"""How fast the simulator is: rounds on Air's networks, fused against the loopback, in one run.

    python benchmarks/engine.py

Air's networks and sizes (100 clients, 20 networks of 5 × 100 units, window 51, memory for 5) on random data, so that it
needs no download. Only rounds that fine-tune count. Run it with nothing else running.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp
from ofms.policies.ofms_ft import Settings, build
from ofms.policies.protocol import Fleet
from ofms.report.tables import format_table
from ofms.simulator.exchange import Exchange
from ofms.simulator.fused import FusedSimulation
from ofms.simulator.loopback import LoopbackSimulation

CLIENTS, MODELS, WINDOW, BUDGET = 100, 20, 51, 5
WARM_UP_ROUNDS, FUSED_ROUNDS, LOOPBACK_ROUNDS = 3, 40, 8


def air_like() -> tuple[Dictionary, Stream]:
    """Networks of Air's architecture and a stream of its shape."""
    torch.manual_seed(0)
    modules = {f"net{index}": mlp(14, [100] * 5, 1) for index in range(MODELS)}
    random = np.random.default_rng(0)
    x = random.random((CLIENTS, WINDOW + FUSED_ROUNDS + WARM_UP_ROUNDS, 14), dtype=np.float32)
    return Dictionary.from_modules(modules, task="regression"), Stream(x, x.mean(axis=2), "regression")


def seconds_a_round(exchanges: Iterator[Exchange], rounds: int) -> float:
    """The mean time of rounds that fine-tune, after a few to warm up."""
    for _ in range(WINDOW + WARM_UP_ROUNDS):
        next(exchanges)
    started = time.perf_counter()
    for _ in range(rounds):
        next(exchanges)
    return (time.perf_counter() - started) / rounds


def main() -> None:
    dictionary, stream = air_like()
    catalogue = dictionary.catalogue()
    budgets = np.full(CLIENTS, BUDGET * int(catalogue.storage.max()))
    fleet = Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(stream.rounds))
    settings = Settings(
        learning_rate=0.7, fine_tuning_rate=1e-5, importance_cap=20, loss_bound="raw", window=WINDOW, warm_up=WINDOW
    )
    policy = build(settings, fleet)
    rows = {}
    for name, hindsight in (("fused", False), ("fused, with hindsight", True)):
        simulation = FusedSimulation(policy, fleet, dictionary, stream, seed=0, hindsight=hindsight)
        rows[name] = seconds_a_round(simulation.exchanges(), FUSED_ROUNDS)
    loopback = LoopbackSimulation(policy, fleet, dictionary, stream, seed=0, hindsight=False)
    rows["loopback"] = seconds_a_round(loopback.exchanges(), LOOPBACK_ROUNDS)
    slowest = rows["loopback"]
    table = [[name, f"{1e3 * took:.1f} ms", f"{slowest / took:.1f}×"] for name, took in rows.items()]
    print(format_table(["Air's sizes, rounds that fine-tune", "a round", "against the loopback"], table))


if __name__ == "__main__":
    main()
