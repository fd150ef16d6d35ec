"""The result of `mutmut run` by file: how many mutants the tests kill, and the names of those that survive."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

_LEAST_KILLED = 0.9
# Exit codes of pytest, and of mutmut where no test runs the function or where the time is up.
_VERDICTS = {0: "survived", 1: "killed", 2: "killed", 3: "killed", 5: "survived", 33: "survived", 36: "killed"}


def verdicts(meta: Path) -> dict[str, str]:
    """The verdict on each mutant of a file that was run. A mutant that loops or crashes is killed."""
    codes = json.loads(meta.read_bytes())["exit_code_by_key"]
    return {name: _VERDICTS.get(code, "killed") for name, code in codes.items() if code is not None}


def main() -> int:
    root = Path("mutants/src/ofms")
    total: Counter[str] = Counter()
    survivors: list[str] = []
    for meta in sorted(root.rglob("*.py.meta")):
        found = verdicts(meta)
        if found:
            count = Counter(found.values())
            total += count
            survivors += [name for name, verdict in found.items() if verdict == "survived"]
            name = meta.relative_to(root).as_posix().removesuffix(".meta")
            print(f"{name:<36}{count['killed']:>5} of {len(found):<5}{100 * count['killed'] / len(found):>6.1f} %")
    if not total:
        print("no mutant has been run: make mutate")
        return 2
    share = total["killed"] / total.total()
    print(f"{'all':<36}{total['killed']:>5} of {total.total():<5}{100 * share:>6.1f} %\n")
    print("\n".join(["survivors, each shown by `mutmut show NAME`:", *survivors]))
    return 0 if share >= _LEAST_KILLED else 1


if __name__ == "__main__":
    sys.exit(main())
