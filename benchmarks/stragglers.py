"""Exchanges per hour of a deployment on Flower in which one in five devices is ten times slower than the others.

    python benchmarks/stragglers.py [--devices 10] [--seconds 4] [--exchanges 12] [--waiting]

Real deployments on loopback, one after the other, with late hedging: a device takes some seconds for the samples of an
exchange, a slow one ten times as many. Exchanges after the first four, from the server's event log. With `--waiting`,
also a server that waits for all devices, as without a quorum, in few exchanges. Needs the extra `flower`, and Linux.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from deployment import Fleet
from ofms.coordinator.status import read_status
from ofms.drawing.tables import format_table

SLOWER, ONE_IN, QUORUM = 10, 5, 0.8
# The first exchanges also load PyTorch; those of the last row take as long as the slow devices do.
FIRST, FEW = 3, 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--exchanges", type=int, default=12)
    parser.add_argument("--waiting", action="store_true")
    given = parser.parse_args()
    rows, usual = [], 0.0
    slow_ones = "one in five is ten times slower"
    cases = [("no slow device", False, QUORUM, given.exchanges), (slow_ones, True, QUORUM, given.exchanges)]
    for name, slow, quorum, exchanges in [*cases, (slow_ones, True, 1.0, FEW)] if given.waiting else cases:
        paces = [given.seconds * (SLOWER if slow and client % ONE_IN == 0 else 1.0) for client in range(given.devices)]
        with tempfile.TemporaryDirectory() as folder:
            with Fleet(
                Path(folder), given.devices, connects=True, exchanges=exchanges, quorum=quorum, paces=paces
            ) as fleet:
                seconds = fleet.measure(FIRST).seconds
            status = read_status(fleet.fleet)
        usual = usual or seconds
        late = sum(device["late"] for device in status["devices"])
        share = f"{100 * (usual / seconds - 1):+.1f} %"
        rows.append([name, f"{quorum:g}", f"{seconds:.1f} s", f"{3600 / seconds:.0f}", share, str(late)])
        print(*rows[-1], sep="; ", file=sys.stderr)
    print(format_table([f"{given.devices} devices", "quorum", "exchange", "per hour", "", "late answers"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
