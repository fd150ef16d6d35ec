"""Profile of an MNIST round: py-spy's samples of rounds that fine-tune, by activity.

    python benchmarks/profile_round.py

Needs the extra `bench` (py-spy) and permission to trace processes.
"""

from __future__ import annotations

import collections
import subprocess
import sys
import tempfile
from pathlib import Path

from ofms.drawing.tables import format_table

ROUNDS = 4
# Activities and the frames that identify them; the first match in this order counts.
BLOCKS = {
    "networks, backward": ("_engine_run_backward",),
    "networks, forward in fine-tuning": ("_fused_step", "torch/nn/modules"),
    "networks, forward for losses": ("_evaluate_single", "torch/nn/modules"),
    "loss of the samples": ("sample_losses",),
    "gathering samples": ("compute/samples.py", "of ("),
    "changing the memory layout": ("compute/samples.py", "pieces"),
    "applying updates": ("apply (",),
    "other fine-tuning": ("_fused_step",),
    "other evaluation": ("evaluate",),
    "policy: request, grant, plan, learn": ("policies/",),
}


def work() -> None:
    """The profiled work: MNIST's networks at the paper's sizes, until some rounds have fine-tuned."""
    from networks import MNIST, WINDOW, make_problem
    from ofms.simulator.simulation import make_simulation

    problem = make_problem(MNIST, WINDOW + ROUNDS)
    simulation = make_simulation(problem.policy, problem.fleet, problem.dictionary, problem.stream, seed=0)
    for exchange in simulation.exchanges():
        print(f"round {exchange.index}", file=sys.stderr)


def block_of(stack: str) -> str | None:
    """The activity of a stack; None for start-up."""
    if "_exchange" not in stack and "thread.py" not in stack:
        return None
    for name, marks in BLOCKS.items():
        if all(mark in stack for mark in marks):
            return name
    return "everything else"


def main() -> int:
    if sys.argv[1:] == ["--work"]:
        work()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks"
        command = ["py-spy", "record", "--rate", "100", "--format", "raw", "--full-filenames", "--output", str(raw)]
        subprocess.run([*command, "--", sys.executable, __file__, "--work"], check=True, capture_output=True)
        counts: collections.Counter[str] = collections.Counter()
        for line in raw.read_text().splitlines():
            stack, _, samples = line.rpartition(" ")
            if block := block_of(stack):
                counts[block] += int(samples)
    total = sum(counts.values())
    rows = [[name, f"{100 * count / total:.1f} %"] for name, count in counts.most_common()]
    print(format_table(["of an MNIST run's worker threads", "time"], rows))
    networks = sum(count for name, count in counts.items() if name.startswith("networks"))
    print(f"the networks' own arithmetic: {100 * networks / total:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
