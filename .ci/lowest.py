"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `lowest.py EXTRA...`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

# Only this version has a CPU build wherever CI runs, so PyTorch's lower bound is not tried.
PINNED = {"torch": "2.13.0"}


def required(project: dict[str, Any], extras: list[str]) -> list[str]:
    """The requirements of extras; those that name extras of this package are replaced by what these require."""
    found: list[str] = []
    for requirement in (each for extra in extras for each in project["optional-dependencies"][extra]):
        own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
        found += [requirement] if own is None else required(project, own[1].split(","))
    return found


def main(extras: list[str]) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    for requirement in dict.fromkeys(project["dependencies"] + required(project, extras)):
        parts = re.fullmatch(r"([A-Za-z0-9._-]+)(>=|==)([0-9.]+)", requirement)
        if parts is None:
            raise SystemExit(f"pyproject.toml: {requirement}: write it as name>=version")
        print(f"{parts[1]}=={PINNED.get(parts[1], parts[3])}")


if __name__ == "__main__":
    main(sys.argv[1:])
