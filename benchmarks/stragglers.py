"""Exchanges per hour of a deployment on Flower while one in five devices is ten times slower than the others.

    python benchmarks/stragglers.py [--devices 5 10] [--seconds 3] [--exchanges 10] [--turns 2] [--quorum 0.8]

Real deployments on loopback with late hedging: a device takes some seconds for the samples of an exchange, a slow one
ten times as many. In each deployment, stretches without and with slow devices take turns, so that both are measured
under the same conditions. The times of exchanges are from the server's event log, without the first one of each
stretch. With `--quorum 1`, the server waits for all devices. Needs the extra `flower`, and Linux.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from deployment import Fleet
from ofms.coordinator.status import read_status
from ofms.drawing.tables import format_table

SLOWER, ONE_IN = 10, 5
# By which share exchanges per hour may become fewer.
MOST_FEWER = 0.1
# The first exchanges also load PyTorch.
FIRST = 4
NAMES = {False: "no slow device", True: "one in five is ten times slower"}


def seconds_of_exchanges(fleet: Fleet, exchanges: int) -> list[float]:
    """The time of each of the next exchanges, after one that may have begun before."""
    first, found = fleet.closed(), []
    fleet.wait_for_exchange(first)
    for number in range(first + 1, first + 1 + exchanges):
        began = time.monotonic()
        fleet.wait_for_exchange(number)
        found.append(time.monotonic() - began)
    return found


def late_answers(fleet: Fleet) -> int:
    return sum(device["late"] for device in read_status(fleet.fleet)["devices"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--exchanges", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--quorum", type=float, default=0.8)
    given = parser.parse_args()
    rows, missed = [], []
    for devices in given.devices:
        seconds: dict[bool, list[float]] = {slow: [] for slow in NAMES}
        late = dict.fromkeys(NAMES, 0)
        with (
            tempfile.TemporaryDirectory() as folder,
            Fleet(Path(folder), devices, connects=True, exchanges=10**6, quorum=given.quorum) as fleet,
        ):
            fleet.set_paces([given.seconds] * devices)
            fleet.wait_for_exchange(FIRST)
            for slow in [*NAMES] * given.turns:
                slower = {client for client in range(devices) if slow and client % ONE_IN == 0}
                fleet.set_paces([given.seconds * (SLOWER if each in slower else 1) for each in range(devices)])
                before = late_answers(fleet)
                seconds[slow] += seconds_of_exchanges(fleet, given.exchanges)
                late[slow] += late_answers(fleet) - before
        usual = statistics.mean(seconds[False])
        for slow, name in NAMES.items():
            mean = statistics.mean(seconds[slow])
            change = usual / mean - 1
            share = f"{100 * change:+.1f} %" if slow else ""
            if change < -MOST_FEWER:
                missed.append(devices)
            longest = f"{max(seconds[slow]):.1f} s"
            rows.append(
                [f"{devices} devices, {name}", f"{mean:.2f} s", longest, f"{3600 / mean:.0f}", share, str(late[slow])]
            )
            print(*rows[-1], sep="; ", file=sys.stderr)
    print(format_table(["", "exchange", "longest", "per hour", "", "late answers"], rows))
    for devices in missed:
        print(f"SHORT {devices} devices: more than {100 * MOST_FEWER:.0f} % fewer exchanges per hour")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
