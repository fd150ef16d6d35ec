"""The simulator's throughput compared with a bare loop on the same machine, as ratios measured in one run.

    python benchmarks/engine.py [air] [mnist] [cifar10]

Full OFMS-FT rounds that fine-tune (selection, losses, fine-tuning) at the paper's sizes, on random data. Their
sample-gradients per second are divided by those of a bare loop over forward and backward passes of the same networks
in its best layout, which is searched for: workers or threads, memory format, chunk size. For Air's small networks the
bare loop is a hand-written forward and backward pass over stacked models. Bare loop and rounds alternate, and the
median counts. Run it on an idle machine; it exits with 1 if a figure misses its limit.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from torch import nn

from networks import AIR, CIFAR10, MNIST, WINDOW, Case, make_problem
from ofms.compute.protocol import Compute
from ofms.compute.threads import ThreadedCompute
from ofms.drawing.tables import format_table
from ofms.models.zoo import build_module
from ofms.simulator.exchange import Exchange
from ofms.simulator.fused import FusedSimulation
from ofms.simulator.loopback import LoopbackSimulation

CASES = {"air": AIR, "mnist": MNIST, "cifar10": CIFAR10}
CORES = 2
TURNS = 5
ROUNDS_A_TURN = {"Air": 20, "MNIST": 1, "CIFAR-10": 1}
LEAST_RATIO = {"Air": 0.7, "MNIST": 0.9, "CIFAR-10": 0.9}
LEAST_OVER_LOOPBACK = 5.0
MOST_HINDSIGHT = 0.1

Bare = Callable[[float], float]


def samples_a_second(work: Callable[[int], None], samples: int, workers: int, seconds: float) -> float:
    """Repeat `work` in every worker for about `seconds`, with the cores divided between them."""
    torch.set_num_threads(CORES // workers)
    with ThreadPoolExecutor(workers) as pool:

        def repeat(worker: int, times: int) -> None:
            for _ in range(times):
                work(worker)

        began = time.perf_counter()
        list(pool.map(repeat, range(workers), [1] * workers))
        times = max(1, round(seconds / (time.perf_counter() - began)))
        began = time.perf_counter()
        list(pool.map(repeat, range(workers), [times] * workers))
        return workers * times * samples / (time.perf_counter() - began)


def bare_network(case: Case, architecture: int, workers: int, channels_last: bool, chunk: int, seconds: float) -> float:
    """Forward and backward passes of one convolutional network, and nothing else."""
    networks = [build_module(*case.architectures[architecture]).eval() for _ in range(workers)]
    memory = torch.channels_last if channels_last else torch.contiguous_format
    for network in networks:
        network.to(memory_format=memory)  # type: ignore[call-overload]
    x = torch.rand(chunk, *case.sample).contiguous(memory_format=memory)
    y = torch.randint(0, 10, (chunk,))

    def work(worker: int) -> None:
        loss = nn.functional.cross_entropy(networks[worker](x), y)
        torch.autograd.grad(loss, list(networks[worker].parameters()))

    return samples_a_second(work, chunk, workers, seconds)


def bare_stack(workers: int, models: int, chunk: int, seconds: float) -> float:
    """Air's networks by hand: `baddbmm` forward and `bmm` backward over stacked models."""
    sizes = [14, 100, 100, 100, 100, 100, 1]
    stacks = []
    for _ in range(workers):
        weights = [torch.randn(models, a, b) / 10 for a, b in pairwise(sizes)]
        biases = [torch.randn(models, 1, b) / 10 for b in sizes[1:]]
        stacks.append((weights, biases, torch.rand(models, chunk, 14), torch.rand(models, chunk, 1)))

    def work(worker: int) -> None:
        weights, biases, x, y = stacks[worker]
        layers = [x]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            layers.append(torch.baddbmm(bias, layers[-1], weight).relu_())
        gradient = 2 * (torch.baddbmm(biases[-1], layers[-1], weights[-1]) - y)
        for depth in reversed(range(len(weights))):
            torch.bmm(layers[depth].transpose(1, 2), gradient)
            gradient.sum(dim=1)
            if depth:
                gradient = torch.bmm(gradient, weights[depth].transpose(1, 2)) * (layers[depth] > 0)

    return samples_a_second(work, models * chunk, workers, seconds)


def find_best(candidates: dict[str, Bare]) -> dict[str, Bare]:
    """The three fastest layouts of a short search; the alternating runs decide between them."""
    rates = {name: bare(0.5) for name, bare in candidates.items()}
    return {name: candidates[name] for name in sorted(rates, key=lambda name: -rates[name])[:3]}


def bare_loops(case: Case) -> list[dict[str, Bare]]:
    """The best bare loops for each architecture of a case."""
    splits = {1: "1 worker with 2 threads", 2: "2 workers with 1 thread"}
    if case is AIR:
        grid = product(splits, (1, 2, 5, 10, 20), (128, 256, 512, 1024))
        stacks: dict[str, Bare] = {
            f"{splits[workers]}, {models} models at once, chunks of {chunk}": partial(
                bare_stack, workers, models, chunk
            )
            for workers, models, chunk in grid
        }
        return [find_best(stacks)]
    loops = []
    for architecture in range(len(case.architectures)):
        layouts: dict[str, Bare] = {
            f"{splits[workers]}, channels {'last' if last else 'first'}, chunks of {chunk}": partial(
                bare_network, case, architecture, workers, last, chunk
            )
            for workers, last, chunk in product(splits, (False, True), (16, 32, 64, 128, 256))
        }
        loops.append(find_best(layouts))
    return loops


def sample_gradients(exchange: Exchange, architectures: int) -> list[int]:
    """Number of sample-gradients, by architecture."""
    counts = WINDOW * np.count_nonzero(exchange.plan.update_weight, axis=0)
    return [int(counts[index::architectures].sum()) for index in range(architectures)]


def measure(case: Case) -> tuple[list[str], dict[str, float]]:
    """A row of the table, and the figures with a limit."""
    loops = bare_loops(case)
    turn = ROUNDS_A_TURN[case.name]
    problem = make_problem(case, WINDOW + 1 + turn * TURNS)
    compute = ThreadedCompute(problem.dictionary, problem.stream)
    simulation = FusedSimulation(problem.policy, problem.fleet, compute, problem.stream.y, seed=0, hindsight=False)
    exchanges = simulation.exchanges()
    for _ in range(WINDOW + 1):
        exchange = next(exchanges)
    rounds, hindsight, samples = [], [], []
    rates: list[dict[str, list[float]]] = [{name: [] for name in layouts} for layouts in loops]
    for _ in range(TURNS):
        for layouts, seen in zip(loops, rates, strict=True):
            for name, bare in layouts.items():
                seen[name].append(bare(1.0))
        torch.set_num_threads(1)
        began = time.perf_counter()
        for _ in range(turn):
            exchange = next(exchanges)
            samples.append(sample_gradients(exchange, len(loops)))
        took = time.perf_counter() - began
        rounds.append(took / turn)
        hindsight.append(hindsight_seconds(compute, exchange) / (took / turn))
    bare_seconds = 0.0
    for index, seen in enumerate(rates):
        medians = {name: statistics.median(values) for name, values in seen.items()}
        best = max(medians, key=lambda name: medians[name])
        print(f"{case.name}, architecture {index + 1}: best bare loop: {best}", file=sys.stderr)
        bare_seconds += statistics.mean(counts[index] for counts in samples) / medians[best]
    took, extra = statistics.median(rounds), statistics.median(hindsight)
    ratio = bare_seconds / took
    rate = sum(sample_gradients(exchange, len(loops))) / took
    figures = {"ratio": ratio, "hindsight": extra}
    row = [case.name, f"{1e3 * took:.1f} ms", f"{rate:,.0f}", f"{ratio:.2f}", f"{100 * extra:.1f} %"]
    if case is AIR:
        figures["loopback"] = loopback_seconds(case) / took
        row.append(f"{figures['loopback']:.1f}×")
    return row if case is AIR else [*row, ""], figures


def hindsight_seconds(compute: Compute, exchange: Exchange) -> float:
    """The extra time for the losses of all models, relative to those of held models."""
    times = []
    for hindsight in (False, True):
        began = time.perf_counter()
        for _ in range(5):
            plan = exchange.plan
            weights = plan.prediction_weights
            compute.evaluate(exchange.span, plan.held, weights, hindsight=hindsight).result()
        times.append((time.perf_counter() - began) / 5)
    return times[1] - times[0]


def loopback_seconds(case: Case) -> float:
    """A round that fine-tunes, client by client."""
    problem = make_problem(case, WINDOW + 7)
    loopback = LoopbackSimulation(
        problem.policy, problem.fleet, problem.dictionary, problem.stream, seed=0, hindsight=False
    )
    ended = [time.perf_counter() for _ in loopback.exchanges()]
    return (ended[-1] - ended[WINDOW]) / (len(ended) - 1 - WINDOW)


def main() -> int:
    names = sys.argv[1:] or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"no case {unknown[0]!r}: one of {', '.join(CASES)}", file=sys.stderr)
        return 2
    results = [measure(CASES[name]) for name in names]
    header = ["", "round", "sample-gradients/s", "of the bare loop", "hindsight adds", "against the loopback"]
    print(format_table(header, [row for row, _ in results]))
    short = False
    for name, (_, figures) in zip(names, results, strict=True):
        case = CASES[name]
        checks = [("of the bare loop", figures["ratio"], LEAST_RATIO[case.name], 1)]
        checks.append(("hindsight", figures["hindsight"], MOST_HINDSIGHT, -1))
        if "loopback" in figures:
            checks.append(("over the loopback", figures["loopback"], LEAST_OVER_LOOPBACK, 1))
        for what, value, limit, sign in checks:
            fine = sign * value >= sign * limit
            short |= not fine
            side = "at least" if sign > 0 else "at most"
            print(f"{'ok   ' if fine else 'SHORT'} {case.name}, {what}: {value:.2f} ({side} {limit})")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
