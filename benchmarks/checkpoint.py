"""The cost of a checkpoint for the paper's networks: time, size, and share of a run at the default interval.

python benchmarks/checkpoint.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from networks import AIR, CIFAR10, MNIST, Case, make_problem
from ofms.drawing.tables import format_table
from ofms.runs.checkpoint import Checkpoints, Flattenable, Inputs
from ofms.runs.units import human_bytes
from ofms.simulator.api import CHECKPOINT_SECONDS
from ofms.simulator.metrics import Measurement
from ofms.simulator.simulation import make_simulation

MOST_SHARE = 0.02


def measure(case: Case) -> tuple[list[str], float]:
    problem = make_problem(case, 3)
    simulation = make_simulation(problem.policy, problem.fleet, problem.dictionary, problem.stream, seed=0)
    measurement = Measurement(case.clients, len(problem.dictionary), loss_bound="raw", hindsight=True, history=10)
    for exchange in simulation.exchanges():
        measurement.add(exchange)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Flattenable] = {"simulation": simulation, "measurement": measurement}
        checkpoints = Checkpoints(Path(folder), CHECKPOINT_SECONDS, parts, Inputs("dictionary", "stream"))
        for _ in range(7):
            began = time.perf_counter()
            checkpoints.write(3, 0.0)
            times.append(time.perf_counter() - began)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    took = statistics.median(times)
    share = took / (CHECKPOINT_SECONDS + took)
    return [case.name, f"{1e3 * took:.0f} ms", human_bytes(size), f"{100 * share:.2f} %"], share


def main() -> int:
    results = [measure(case) for case in (AIR, MNIST, CIFAR10)]
    header = ["", "checkpoint", "size", f"of a run, every {CHECKPOINT_SECONDS:.0f} s"]
    print(format_table(header, [row for row, _ in results]))
    return int(max(share for _, share in results) > MOST_SHARE)


if __name__ == "__main__":
    sys.exit(main())
