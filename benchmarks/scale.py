"""The cost of selection by fleet size: a round's requests, grants, plans and learning, without networks.

    python benchmarks/scale.py

Twenty models of mixed costs for ten thousand, a hundred thousand and a million clients of mixed budgets, and a
thousand models for ten thousand clients. Each size runs in a separate process, to measure its peak memory. Exits with 1
if a figure misses its limit.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.drawing.tables import format_table
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft import Settings, build
from ofms.policies.session import open_sessions

SIZES = ((10_000, 20), (100_000, 20), (1_000_000, 20), (10_000, 1000))
ROUNDS = 5
MOST_SECONDS_AT_A_MILLION = 2.0
MOST_GROWTH = 1.2
MOST_GIB = 4.0


def mixed_fleet(clients: int, models: int) -> Fleet:
    """Models of four sizes, clients with memory for two to ten of the largest, bandwidth for half of them."""
    storage = np.resize(np.array([1_092_264, 962_112, 637_016, 1_228_456], dtype=np.int64), models)
    names = tuple(f"model{index}" for index in range(models))
    catalogue = Catalogue(names, storage, storage.copy(), np.zeros(models, dtype=np.int64))
    budgets = int(storage.max()) * np.resize(np.array([2, 3, 5, 10], dtype=np.int64), clients)
    return Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(1000))


def measure(clients: int, models: int) -> dict[str, float]:
    """Seconds of each part of a round, the best of several, and the peak memory of this process."""
    fleet = mixed_fleet(clients, models)
    policy = build(Settings(learning_rate=0.05, fine_tuning_rate=0.01), fleet)
    clients_session, server_session = open_sessions(policy, fleet)
    state = clients_session.join(fleet.catalogue, fleet.budgets, np.arange(clients))
    server = server_session.open()
    # Losses come from compute; here they need only differ between clients and models.
    losses = np.random.default_rng(0).random((clients, models))
    best: dict[str, float] = {}
    for exchange in range(ROUNDS):
        draws = Draws(0, exchange)
        marks = [time.perf_counter()]
        state, requests = clients_session.request(state, draws)
        marks.append(time.perf_counter())
        server, grants = server_session.grant(server, requests, draws)
        marks.append(time.perf_counter())
        state, plan = clients_session.plan(state, grants)
        marks.append(time.perf_counter())
        state, reports = clients_session.learn(state, plan, losses)
        server, _ = server_session.absorb(server, reports)
        marks.append(time.perf_counter())
        times = dict(zip(("request", "grant", "plan", "learn"), np.diff(marks).tolist(), strict=True))
        times["round"] = marks[-1] - marks[0]
        best = times if not best or times["round"] < best["round"] else best
    return best | {"gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main() -> int:
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
        return 0
    results = {}
    for clients, models in SIZES:
        command = [sys.executable, __file__, str(clients), str(models)]
        results[clients, models] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    table = [
        [
            f"{clients:,} clients, {models:,} models",
            *(f"{1e3 * result[part]:.1f} ms" for part in ("request", "grant", "plan", "learn", "round")),
            f"{1e9 * result['round'] / clients:.0f} ns",
            f"{result['gib']:.2f} GiB",
        ]
        for (clients, models), result in results.items()
    ]
    print(format_table(["", "request", "grant", "plan", "learn", "round", "per client", "peak"], table))
    small, large = results[10_000, 20], results[1_000_000, 20]
    growth = large["round"] / 1_000_000 / (small["round"] / 10_000)
    checks = [
        ("round of a million clients, s", large["round"], MOST_SECONDS_AT_A_MILLION),
        ("cost per client at a million over that at ten thousand", growth, MOST_GROWTH),
        ("peak memory, GiB", max(result["gib"] for result in results.values()), MOST_GIB),
    ]
    print()
    for name, value, most in checks:
        print(f"{'ok  ' if value <= most else 'SHORT'} {name}: {value:.2f} (at most {most:g})")
    return 0 if all(value <= most for _, value, most in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
