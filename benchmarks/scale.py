"""The cost of selection by fleet size: a round's requests, grants, plans and learning, without networks.

    python benchmarks/scale.py
    python benchmarks/scale.py POLICY CLIENTS MODELS ROUNDS
    python benchmarks/scale.py --processes 2 [POLICY CLIENTS MODELS ROUNDS]
    python benchmarks/scale.py --packing [MODELS]

Twenty models of mixed costs for ten thousand, a hundred thousand and a million clients of mixed budgets, and a
thousand models for ten thousand clients. OFMS-FT runs five rounds, of which the fastest counts; late hedging two, of
which the second counts, and for a thousand clients so many that its window is full. Each size runs in a separate
process, to measure its peak memory, after another one has touched memory. Exits with 1 if a figure misses its limit.

With `--processes`, each process owns a block of the clients with their state, and a part of the bandwidth, and works on
it with one thread; a round ends with the slowest. By default OFMS-FT is measured with a million and with ten million
clients. Processes keep the memory that they free: a virtual machine may give memory that is free for seconds back to
its host, and rounds of ten million clients take that long. So the first round takes memory, and others use it again.

With `--packing`, it measures in processor time how long a device takes to partition models of different costs, ten
thousand by default, when it joins, and how long to draw one set of them.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Plan
from ofms.core.packing.partition import partition_models
from ofms.core.schedule import Schedule
from ofms.core.selection import held_set
from ofms.core.states import flatten
from ofms.core.typing import AnyArray
from ofms.drawing.tables import format_table
from ofms.policies import late_hedge, late_hedge_settings, ofms_ft, ofms_ft_settings
from ofms.policies.blocks import threads
from ofms.policies.fleet import Fleet
from ofms.policies.observations import Samples
from ofms.policies.protocol import Policy
from ofms.policies.session import ClientSession, ClientState, open_sessions

SIZES = (
    ("ofms-ft", 10_000, 20, 5),
    ("ofms-ft", 100_000, 20, 5),
    ("ofms-ft", 1_000_000, 20, 5),
    ("ofms-ft", 10_000, 1000, 5),
    ("late-hedge", 10_000, 20, 2),
    ("late-hedge", 1_000_000, 20, 2),
    ("late-hedge", 1_000, 20, 60),
)
MOST_SECONDS_AT_A_MILLION = {"ofms-ft": 2.0, "late-hedge": 3.0}
MOST_GROWTH = 1.2
MOST_GIB = 4.0
SHARED_SIZES = (("ofms-ft", 1_000_000, 20, 12), ("ofms-ft", 10_000_000, 20, 4))
MOST_SHARED_GIB = 24.0
# For the allocator of the C library: no memory of its own for large arrays, and none given back.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**46), "MALLOC_TOP_PAD_": str(2**24)}
# Where the processes that own parts of the clients wait for each other before a round.
_begin: Barrier | None = None


def mixed_fleet(clients: int, models: int) -> Fleet:
    """Models of four sizes, clients with memory for two to ten of the largest, bandwidth for half of them."""
    storage = np.resize(np.array([1_092_264, 962_112, 637_016, 1_228_456], dtype=np.int64), models)
    names = tuple(f"model{index}" for index in range(models))
    catalogue = Catalogue(names, storage, storage.copy(), np.zeros(models, dtype=np.int64))
    budgets = int(storage.max()) * np.resize(np.array([2, 3, 5, 10], dtype=np.int64), clients)
    return Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(1000))


def build(name: str, fleet: Fleet) -> Policy:
    if name == "late-hedge":
        return late_hedge.build(late_hedge_settings.LateHedge(), fleet)
    return ofms_ft.build(ofms_ft_settings.OFMSFT(learning_rate=0.05, fine_tuning_rate=0.01), fleet)


def samples(session: ClientSession, state: ClientState, plan: Plan) -> Samples | None:
    """The outputs that compute would hand over: of held models, on the new sample and on past ones."""
    late = session.late(state, plan)
    if late is None:
        return None
    back = np.arange(int(late.max()), -1, -1, dtype=np.int64)[:, None]
    outputs = np.random.default_rng(1).random((late.shape[0], back.size, late.shape[1]), dtype=np.float32)
    outputs[~(plan.held[:, None] & (back <= late[:, None]))] = np.nan
    return Samples.of(state.exchange, outputs[..., None], np.zeros((late.shape[0], 1)))


def back_memory() -> None:
    """Touch as much memory as is allowed, in another process.

    A virtual machine may have given free memory back to its host, which then takes seconds to back each GiB again.
    """
    subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({int(MOST_GIB * 2**27)})"], check=True)


def measure(name: str, clients: int, models: int, rounds: int, part: tuple[int, int] = (0, 1)) -> dict[str, float]:
    """Seconds of each part of a round, and the peak memory of this process, which owns one of several parts."""
    first, stop = (clients * place // part[1] for place in (part[0], part[0] + 1))
    fleet, clients = mixed_fleet(clients, models), stop - first
    policy = build(name, fleet)
    clients_session, server_session = open_sessions(policy, replace(fleet, bandwidth=fleet.bandwidth // part[1]))
    state = clients_session.join(fleet.catalogue, fleet.budgets[first:stop], np.arange(first, stop))
    server = server_session.open()
    # Losses come from compute; here they need only differ between clients and models.
    losses: AnyArray = np.random.default_rng(0).random((clients, models), dtype=np.float32)
    best: dict[str, float] = {}
    for exchange in range(rounds):
        draws = Draws(0, exchange)
        if _begin is not None:
            _begin.wait(600)
        marks = [time.perf_counter()]
        state, requests = clients_session.request(state, draws)
        marks.append(time.perf_counter())
        server, grants = server_session.grant(server, requests, draws)
        marks.append(time.perf_counter())
        state, plan = clients_session.plan(state, grants)
        marks.append(time.perf_counter())
        seen = samples(clients_session, state, plan)
        began = time.perf_counter()
        state, reports = clients_session.learn(state, plan, losses, seen)
        server, _ = server_session.absorb(server, reports)
        marks.append(marks[-1] + time.perf_counter() - began)
        times = dict(zip(("request", "grant", "plan", "learn"), np.diff(marks).tolist(), strict=True))
        times["round"] = marks[-1] - marks[0]
        # The rounds of late hedging get longer until its window is full: the last one counts.
        best = times if not best or name == "late-hedge" or times["round"] < best["round"] else best
    held = sum(array.nbytes for array in flatten(state)[0].values()) / clients
    return best | {"gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "state": held}


def measure_processes(count: int, name: str, sizes: list[int]) -> dict[str, float]:
    """The slowest process of each part of a round, and the memory of all."""
    context = get_context("spawn")
    os.environ.update(_KEEP_MEMORY)
    with ProcessPoolExecutor(count, context, _share, (context.Barrier(count),)) as pool:
        results = list(pool.map(partial(measure_part, name, sizes), [(place, count) for place in range(count)]))
    joined = {key: max(result[key] for result in results) for key in results[0]}
    return joined | {"gib": sum(result["gib"] for result in results), "ns": 1e9 * joined["round"] / sizes[0]}


def measure_part(name: str, sizes: list[int], part: tuple[int, int]) -> dict[str, float]:
    clients, models, rounds = sizes
    return measure(name, clients, models, rounds, part)


def measure_packing(models: int) -> int:
    """Print the processor time of one device's partition, and of a drawn set."""
    costs = np.random.default_rng(0).permutation(np.linspace(500_000, 1_500_000, models, dtype=np.int64))
    began = time.process_time()
    table = partition_models(costs, np.array([5 * int(costs.max())]))
    packed = time.process_time()
    held_set(table, table.kind, np.array([0]), np.array([1]))
    drawn = time.process_time() - packed
    print(f"{models:,} models of different costs: {packed - began:.1f} s to join, {drawn:.3f} s to draw a set")
    return 0


def _share(barrier: Barrier) -> None:
    global _begin
    _begin = barrier


def main() -> int:
    if sys.argv[1:2] == ["--packing"]:
        return measure_packing(int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
    if sys.argv[1:2] == ["--processes"]:
        count, given = int(sys.argv[2]), sys.argv[3:]
        if not given:
            return compare_processes(count)
        print(json.dumps(measure_processes(count, given[0], [int(size) for size in given[1:]])))
        return 0
    if len(sys.argv) == 5:
        back_memory()
        with threads(os.cpu_count() or 1):
            clients, models, rounds = map(int, sys.argv[2:])
            print(json.dumps(measure(sys.argv[1], clients, models, rounds)))
        return 0
    results = {}
    for size in SIZES:
        command = [sys.executable, __file__, *map(str, size)]
        results[size] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    print_table(results)
    checks = []
    for name, most_seconds in MOST_SECONDS_AT_A_MILLION.items():
        rounds = 2 if name == "late-hedge" else 5
        small, large = results[name, 10_000, 20, rounds], results[name, 1_000_000, 20, rounds]
        growth = large["round"] / 1_000_000 / (small["round"] / 10_000)
        checks += [
            (f"{name}, round of a million clients, s", large["round"], most_seconds),
            (f"{name}, cost per client at a million over that at ten thousand", growth, MOST_GROWTH),
        ]
    checks.append(("peak memory, GiB", max(result["gib"] for result in results.values()), MOST_GIB))
    return judge(checks)


def compare_processes(count: int) -> int:
    """A million clients and ten million, divided between processes."""
    results = {}
    for size in SHARED_SIZES:
        results[size] = measure_processes(count, size[0], list(size[1:]))
        print(f"{size}: {json.dumps(results[size])}", file=sys.stderr, flush=True)
    print_table(results)
    small, large = results.values()
    memory = ("peak memory of all processes, GiB", large["gib"], MOST_SHARED_GIB)
    return judge(
        [memory, ("cost per client at ten million over that at a million", large["ns"] / small["ns"], MOST_GROWTH)]
    )


def print_table(results: Mapping[tuple[str, int, int, int], Mapping[str, float]]) -> None:
    table = [
        [
            f"{name}, {clients:,} clients, {models:,} models, round {rounds}",
            *(f"{1e3 * result[part]:.1f} ms" for part in ("request", "grant", "plan", "learn", "round")),
            f"{1e9 * result['round'] / clients:.0f} ns",
            f"{result['state'] / 1024:.1f} KiB",
            f"{result['gib']:.2f} GiB",
        ]
        for (name, clients, models, rounds), result in results.items()
    ]
    print(
        format_table(["", "request", "grant", "plan", "learn", "round", "per client", "state of each", "peak"], table)
    )


def judge(checks: Sequence[tuple[str, float, float]]) -> int:
    """Print figures beside what they may be at most; the exit status."""
    print()
    for name, value, most in checks:
        print(f"{'ok  ' if value <= most else 'SHORT'} {name}: {value:.2f} (at most {most:g})")
    return 0 if all(value <= most for _, value, most in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
