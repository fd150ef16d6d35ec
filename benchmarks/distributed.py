"""Processes that share a run, against the worker threads of one process, as ratios measured in one run.

    python benchmarks/distributed.py [mnist] [cifar10] [reduction] [start] [reproduce-digits] [reproduce]

Full OFMS-FT rounds that fine-tune, at the paper's sizes with B = 5, on random data: one process with two worker
threads, two processes with one thread each, and one process with one thread. Processor time, of all processes together,
is less sensitive to other programs.

A reduction is the sum of one exchange's updates, of all models by every shard, over two processes that are connected by
gloo through the loopback interface; it is measured by itself, with random updates, and the median counts. `reduction`
measures nothing else. From it, and from the rate of a network, follows what four machines of two processes would take.

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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from networks import CIFAR10, MNIST, MODELS, WINDOW, make_problem
from ofms.compute.process_group import join_group, leave_group
from ofms.compute.shards import Block, shard_count
from ofms.compute.threads import ThreadedCompute
from ofms.data.folder import data_folder
from ofms.drawing.tables import format_table
from ofms.models.zoo import build_module
from ofms.simulator.fused import FusedSimulation

CASES = {"mnist": (MNIST, 1), "cifar10": (CIFAR10, 1)}
# Megabytes per second between machines: 10 and 1 Gbit/s.
NETWORKS = {"10 Gbit/s": 1250.0, "1 Gbit/s": 125.0}
REDUCTIONS = 15
MOST_START_SECONDS, LEAST_SPEED_UP = 10.0, 1.6
WAYS = {"two processes": ["--processes", "2"], "one process": []}


def work(name: str, workers: int) -> None:
    """In a process of its own: the median time of a round, and of a reduction."""
    case, rounds = CASES[name]
    group = join_group()
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
    if group.rank == 0:
        processor_seconds = float(np.median(sum(part["processor"] for part in parts)))
        print(json.dumps({"round": statistics.median(seconds[-rounds:]), "processor": processor_seconds}))
    if group.size > 1:
        leave_group()


def reduce(name: str) -> None:
    """In a process of its own: the median time of a reduction once all processes are ready, and the bytes of a sum."""
    case, group = CASES[name][0], join_group()
    count = shard_count(case.clients, None, images=True)
    block = Block.of(case.clients, count, group.rank, group.size)
    shapes = [
        {parameter: tuple(tensor.shape) for parameter, tensor in build_module(*architecture).named_parameters()}
        for architecture in case.architectures
    ]
    like, seconds = torch.empty(0), list[float]()
    for _ in range(REDUCTIONS):
        shards = {
            shard: {
                model: {each: torch.rand(shape) for each, shape in shapes[model % len(shapes)].items()}
                for model in range(MODELS)
            }
            for shard in block.numbers
        }
        group.gather({})
        began = time.perf_counter()
        found = group.total(shards, block, like)
        seconds.append(time.perf_counter() - began)
    values = sum(tensor.numel() for update in found.values() for tensor in update.values())
    if group.rank == 0:
        print(json.dumps({"reduction": statistics.median(seconds), "megabytes": 4 * values / 1e6}))
    leave_group()


def measure(processes: int, *arguments: str) -> dict[str, float]:
    """What the first of so many processes of this file prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=common | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    output = [process.communicate()[0] for process in started]
    figures: dict[str, float] = json.loads(output[0])
    print(f"{shlex.join(arguments)}, {processes} processes: {figures}", file=sys.stderr, flush=True)
    return figures


def seconds_of_four(round_seconds: float, reduced: Mapping[str, float], rate: float) -> float:
    """A round in four machines of two processes, from that in one machine of two processes.

    Each machine has a quarter of the clients. Eight processes add up in three levels of a tree, and share the sum in
    three steps, each level and step as long as those of two processes. Over the network go two levels, and the sum over
    three links, one after another.
    """
    clients = (round_seconds - reduced["reduction"]) / 4
    return clients + 3 * reduced["reduction"] + (2 + 3) * reduced["megabytes"] / rate


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


def print_reductions() -> bool:
    for name, (case, _) in CASES.items():
        found = measure(2, "--reduce", name)
        print(f"{case.name}: {found['megabytes']:.1f} MB in {1e3 * found['reduction']:.0f} ms over two processes")
    return True


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
        threads, ranks, one = (
            measure(count, "--work", name, str(workers)) for count, workers in ((1, 2), (2, 1), (1, 1))
        )
        reduced = measure(2, "--reduce", name)
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
                f"{1e3 * reduced['reduction']:.0f} ms",
            ]
        )
        for network, rate in NETWORKS.items():
            whole = seconds_of_four(ranks["round"], reduced, rate)
            print(f"{CASES[name][0].name}, four machines of two processes, {network}, by calculation: ", end="")
            print(f"{whole:.2f} s, {ranks['round'] / whole:.1f} times as fast as one of them")
    header = ["", "two threads", "two processes", "one thread", "processes/threads"]
    header += ["against one", "threads against one", "processor, threads/processes", "a reduction"]
    if rows:
        print(format_table(header, rows))
    for name in missed:
        print(f"SHORT {name}")
    return int(bool(missed))


OTHERS: dict[str, Callable[[], bool]] = {
    "reduction": print_reductions,
    "start": print_start,
    "reproduce-digits": partial(print_reproduction, "--column", "digits"),
    "reproduce": print_reproduction,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["--reduce"]:
        reduce(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:] or [*CASES, *OTHERS]))
