"""Processor time and memory of robust aggregation in the simulator, without an attack: Air, half of its rounds.

    python benchmarks/aggregation.py --models DICTIONARY

Each run is a process of its own, with one worker.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

AGGREGATIONS = ("sum", "clipped", "trimmed-mean", "median")
POLICIES = ("late-hedge", "ofms-ft")
ROUNDS = 100

RUN = """
import resource, sys
from ofms import simulate
policy, aggregation, models, rounds = sys.argv[1:]
simulate("air", policy=policy, models=models or None, aggregation=aggregation, rounds=int(rounds), history=0,
         hindsight=False, workers=1)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="the dictionary's folder; the experiment's own by default")
    models = parser.parse_args().models
    print("| policy | aggregation | processor time, s | largest resident set, MiB |\n|---|---|---:|---:|")
    for policy in POLICIES:
        for aggregation in AGGREGATIONS:
            command = [sys.executable, "-c", RUN, policy, aggregation, models, str(ROUNDS)]
            seconds, memory = map(float, subprocess.check_output(command, text=True).split())
            print(f"| {policy} | {aggregation} | {seconds:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
