"""The verdicts on mutants by file: how many the tests kill, and the names of those that survive."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

_LEAST_KILLED = 0.9
# What `.ci/mutmut_forks.py` records for a mutant that no test notices, or that no test reaches.
_SURVIVED = (0, 33)


def verdicts(meta: Path) -> dict[str, str]:
    """The verdict on each mutant of a file. A mutant that loops or crashes is killed."""
    codes = json.loads(meta.read_bytes())["exit_code_by_key"]
    return {
        name: "waiting" if code is None else "survived" if code in _SURVIVED else "killed"
        for name, code in codes.items()
    }


def main() -> int:
    root = Path("mutants/src/ofms")
    total: Counter[str] = Counter()
    survivors: list[str] = []
    print(f"{'file':<36}{'killed':>7}{'run':>7}{'all':>7}")
    for meta in sorted(root.rglob("*.py.meta")):
        found = verdicts(meta)
        if found:
            count = Counter(found.values())
            total += count
            survivors += [name for name, verdict in found.items() if verdict == "survived"]
            _print_row(meta.relative_to(root).as_posix().removesuffix(".meta"), count)
    if total.total() == total["waiting"]:
        print("no mutant has been run: make mutate")
        return 2
    share = _print_row("all", total)
    print("\n".join(["\nsurvivors, each shown by `.venv/bin/mutmut show NAME`:", *survivors]))
    if total["waiting"]:
        print(f"{total['waiting']} mutants wait: make mutate")
    return 0 if share >= _LEAST_KILLED else 1


def _print_row(name: str, count: Counter[str]) -> float:
    """Print a row, and return the share that is killed."""
    run = count["killed"] + count["survived"]
    share = count["killed"] / run if run else 1.0
    print(f"{name:<36}{count['killed']:>7}{run:>7}{count.total():>7}{100 * share:>7.1f} %")
    return share


if __name__ == "__main__":
    sys.exit(main())
