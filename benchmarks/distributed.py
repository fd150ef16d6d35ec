"""Processes that share a run, against the worker threads of one process, as ratios measured in one run.

    python benchmarks/distributed.py [mnist] [cifar10] [start] [reproduce-digits] [reproduce]

Full OFMS-FT rounds that fine-tune, at the paper's sizes with B = 5, on random data: one process with two worker
threads, two processes with one thread each, and one process with one thread. Processor time, of all processes together,
is less sensitive to other programs. The time in which processes reduce their updates is measured by itself, and from
it follows what four machines would take.

`start` is the time from the command to the end of the first round, and to the end, of a run of one round in four
processes. `reproduce` is `ofms reproduce all --quick` with nothing trained or computed before, in two processes and in
one process with a thread for each core: about forty minutes with all datasets at hand. `reproduce-digits` is the same
for one dataset, in minutes. Run them on an idle machine.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from networks import CIFAR10, MNIST, WINDOW, make_problem
from ofms.compute.group import Group
from ofms.compute.process_group import join_group, leave_group
from ofms.compute.shards import Block, shard_count
from ofms.compute.threads import ThreadedCompute
from ofms.data.folder import data_folder
from ofms.drawing.tables import format_table
from ofms.simulator.fused import FusedSimulation

CASES = {"mnist": (MNIST, 1), "cifar10": (CIFAR10, 1)}
# Megabytes per second between machines: 10 and 1 Gbit/s.
NETWORKS = {"10 Gbit/s": 1250.0, "1 Gbit/s": 125.0}
MOST_START_SECONDS, LEAST_SPEED_UP = 10.0, 1.6
WAYS = {"two processes": ["--processes", "2"], "one process": []}


class Timed:
    """A group that measures how long sums over processes take, with and without waiting for the others."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.gather, self.share, self._group = group.gather, group.share, group
        self.seconds: list[float] = []

    def total(self, shards: Any, block: Block, like: torch.Tensor) -> Any:
        if self.size > 1:
            self.gather({})
        began = time.perf_counter()
        found = self._group.total(shards, block, like)
        self.seconds.append(time.perf_counter() - began)
        return found


def work(name: str, workers: int) -> None:
    """In a process of its own: the median time of a round, and of a reduction."""
    case, rounds = CASES[name]
    group = Timed(join_group())
    problem = make_problem(case, WINDOW + 1 + rounds)
    count = shard_count(case.clients, None, images=True)
    block = Block.of(case.clients, count, group.rank, group.size)
    own = problem.stream.rows(block.clients)
    compute = ThreadedCompute(problem.dictionary, own, workers=workers, block=block)
    simulation = FusedSimulation(
        problem.policy, problem.fleet, compute, own.y, seed=0, hindsight=False, block=block, group=group
    )
    seconds, processor, began, used = [], [], time.perf_counter(), time.process_time()
    for _ in simulation.exchanges():
        ended, now = time.perf_counter(), time.process_time()
        seconds.append(ended - began)
        processor.append(now - used)
        began, used = ended, now
    parts = group.gather({"processor": np.array(processor[-rounds:])})
    values = sum(parameter.numel() for each in compute.networks.parameters for parameter in each.values())
    if group.rank == 0:
        figures = {"round": statistics.median(seconds[-rounds:]), "megabytes": 4 * values / 1e6}
        figures["processor"] = float(np.median(sum(part["processor"] for part in parts)))
        print(json.dumps(figures | {"reduction": statistics.median(group.seconds[-rounds:])}))
    if group.size > 1:
        leave_group()


def measure(name: str, processes: int, workers: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--work", name, str(workers)],
            env=common | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    output = [process.communicate()[0] for process in started]
    figures: dict[str, float] = json.loads(output[0])
    print(f"{name}, {processes} × {workers}: {figures}", file=sys.stderr, flush=True)
    return figures


def start_seconds() -> tuple[float, float]:
    """From the command to the end of the first round, and to the end of the command."""
    run = [sys.executable, "-m", "ofms", "run", "digits", "--rounds", "1", "--set", "shards=4", "--out"]
    with TemporaryDirectory() as folder:
        # Pre-trains the dictionary if it is missing.
        subprocess.run([*run, f"{folder}/before"], check=True, capture_output=True)
        rounds, began = Path(folder) / "run" / "metrics.jsonl", time.perf_counter()
        process = subprocess.Popen([*run, f"{folder}/run", "--processes", "4"], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (rounds.exists() and rounds.stat().st_size):
            time.sleep(0.01)
        first = time.perf_counter() - began
        if process.wait():
            sys.exit(process.returncode)
        return first, time.perf_counter() - began


def reproduce_seconds(arguments: list[str]) -> tuple[float, float]:
    """Of a quick reproduction, with a cache and a folder of its own: until its end, and of the processors."""
    command = [sys.executable, "-m", "ofms", "reproduce", "all", "--quick", "-q", *arguments]
    with TemporaryDirectory() as folder:
        own = os.environ | {"XDG_CACHE_HOME": f"{folder}/cache", "OFMS_DATA": str(data_folder())}
        began, used = time.perf_counter(), _processor_seconds()
        subprocess.run([*command, "--out", f"{folder}/results"], check=True, env=own, stdout=subprocess.DEVNULL)
        seconds, processor = time.perf_counter() - began, _processor_seconds() - used
        cells = len(list((Path(folder) / "results" / "cells").glob("*.json")))
    print(f"{shlex.join(arguments)}: {cells} cells in {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds, processor


def _processor_seconds() -> float:
    """Of the processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_start() -> bool:
    first, end = start_seconds()
    print(f"a run of one round in four processes: {first:.1f} s to the end of the round, {end:.1f} s to the end")
    return first < MOST_START_SECONDS


def print_reproduction(*arguments: str) -> bool:
    found = {name: reproduce_seconds([*arguments, *way]) for name, way in WAYS.items()}
    ratio = found["one process"][0] / found["two processes"][0]
    row = [shlex.join(["all", "--quick", *arguments])]
    row += [f"{seconds:.0f} s, {used / seconds:.2f} cores busy" for seconds, used in found.values()]
    print(format_table(["", *found, "two against one"], [[*row, f"{ratio:.2f}"]]))
    return ratio >= LEAST_SPEED_UP


def main(names: list[str]) -> int:
    rows, missed = [], []
    for name in names:
        if name in OTHERS:
            missed += [] if OTHERS[name]() else [name]
            continue
        threads, ranks, one = (measure(name, *each) for each in ((1, 2), (2, 1), (1, 1)))
        rows.append(
            [
                CASES[name][0].name,
                f"{threads['round']:.2f} s",
                f"{ranks['round']:.2f} s",
                f"{one['round']:.2f} s",
                f"{threads['round'] / ranks['round']:.2f}",
                f"{one['round'] / ranks['round']:.2f}",
                f"{one['round'] / threads['round']:.2f}",
                f"{threads['processor'] / ranks['processor']:.2f}",
                f"{1e3 * ranks['reduction']:.0f} ms",
            ]
        )
        for network, rate in NETWORKS.items():
            # Two levels of the tree and a broadcast over three links, one after another.
            transfer = (2 + 3) * ranks["megabytes"] / rate
            whole = ranks["round"] / 4 + transfer
            print(
                f"{CASES[name][0].name}, four machines of two processes, {network}, by calculation: {whole:.2f} s, ",
                end="",
            )
            print(f"{ranks['round'] / whole:.1f} times as fast as one of them")
    header = ["", "two threads", "two processes", "one thread", "processes/threads"]
    header += ["against one", "threads against one", "processor, threads/processes", "a reduction"]
    if rows:
        print(format_table(header, rows))
    for name in missed:
        print(f"SHORT {name}")
    return int(bool(missed))


OTHERS: dict[str, Callable[[], bool]] = {
    "start": print_start,
    "reproduce-digits": partial(print_reproduction, "--column", "digits"),
    "reproduce": print_reproduction,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:] or [*CASES, *OTHERS]))
