"""Start-up time of the command's help and of the import, compared with an empty Python process.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from ofms.drawing.tables import format_table

REPEATS = 15
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import ofms": ["-c", "import ofms"],
    "ofms --help": ["-m", "ofms", "--help"],
    "ofms list": ["-m", "ofms", "list"],
    "import torch": ["-c", "import torch"],
}


def milliseconds(arguments: list[str]) -> float:
    """The median run time of a process."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    taken = {name: milliseconds(arguments) for name, arguments in COMMANDS.items()}
    empty = taken["python -c pass"]
    print(format_table(["", "time", "×"], [[name, f"{ms:.0f} ms", f"{ms / empty:.1f}"] for name, ms in taken.items()]))


if __name__ == "__main__":
    main()
