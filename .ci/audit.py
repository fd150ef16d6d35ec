"""What is installed: the licence of each package, then known vulnerabilities as `pip-audit` finds them.

Exit status 1 if a licence is not accepted or a vulnerability is known, 2 if not every package could be looked up.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from email.message import Message
from importlib.metadata import distributions
from typing import Any, Protocol

# The licences that installed packages may have. All are permissive, except for the MPL: it concerns changed files of
# the package itself, and packages are used as they are.
ACCEPTED = frozenset(
    {
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0"),
        *("CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Unlicense", "Zlib", "MPL-2.0"),
    }
)
# As packages without a licence expression write them.
_SPELLINGS = {
    **dict.fromkeys(("Apache 2.0", "Apache Software License", "Apache License 2.0"), "Apache-2.0"),
    **dict.fromkeys(("BSD License",), "BSD"),
    **dict.fromkeys(("BSD 3-Clause License", "3-Clause BSD License"), "BSD-3-Clause"),
    **dict.fromkeys(("BSD 2-Clause License",), "BSD-2-Clause"),
    **dict.fromkeys(("ISC License", "ISC License (ISCL)"), "ISC"),
    **dict.fromkeys(("MIT License",), "MIT"),
    **dict.fromkeys(("Mozilla Public License 2.0 (MPL 2.0)",), "MPL-2.0"),
    **dict.fromkeys(("Python Software Foundation License",), "PSF-2.0"),
}
_OWN = "ofms"


class Metadata(Protocol):
    """The metadata of a package."""

    def get(self, name: str, failobj: Any = None) -> Any: ...

    def get_all(self, name: str, failobj: Any = None) -> Any: ...


def licence_of(metadata: Metadata | Message) -> str:
    """A package's licence expression, from its fields or its classifiers; empty if it names none.

    Several classifiers are a choice, as packages use them.
    """
    if expression := metadata.get("License-Expression"):
        return str(expression)
    stated = str(metadata.get("License") or "").strip()
    if is_accepted(_SPELLINGS.get(stated, stated)):
        return _SPELLINGS.get(stated, stated)
    kinds = [each.split(" :: ")[-1] for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    named = [_SPELLINGS.get(kind, kind) for kind in kinds if kind not in ("OSI Approved", "DFSG approved")]
    return " OR ".join(named) or stated.splitlines()[0][:60] if named or stated else ""


def is_accepted(expression: str) -> bool:
    """Whether a licence expression can be satisfied with accepted licences."""
    tokens = re.findall(r"\(|\)|\bOR\b|\bAND\b|(?:(?!\s+(?:OR|AND)\b)[^()])+", expression)
    parts = [part.strip() for part in tokens if part.strip()]
    known = [part if part in ("(", ")", "OR", "AND") else str(part in ACCEPTED) for part in parts]
    text = " ".join(known)
    while "(" in text:
        inner = re.sub(r"\(([^()]*)\)", lambda group: str(_any_of_all(group[1])), text)
        if inner == text:
            return False
        text = inner
    return _any_of_all(text)


def _any_of_all(text: str) -> bool:
    return any(all(part.strip() == "True" for part in each.split("AND")) for each in text.split("OR"))


def print_licences(packages: Iterable[tuple[str, str, str]]) -> list[str]:
    """Print name, version and licence of packages; the names of those whose licence is not accepted."""
    refused = []
    for name, version, licence in sorted(packages, key=lambda each: each[0].lower()):
        accepted = is_accepted(licence)
        print(f"{name:<36}{version:<16}{licence or 'unknown'}{'' if accepted else '  <- not accepted'}")
        if not accepted:
            refused.append(name)
    return refused


def vulnerabilities(found: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Lines of known vulnerabilities, and the packages that could not be looked up, from the JSON of pip-audit."""
    known, skipped = [], []
    for package in found["dependencies"]:
        if "skip_reason" in package and package["name"] != _OWN:
            skipped.append(package["name"])
        for each in package.get("vulns", ()):
            fixed = ", ".join(each["fix_versions"]) or "no version"
            known.append(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    return known, skipped


def run_pip_audit() -> Mapping[str, Any] | str:
    """What pip-audit found, or in one line why it could not."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "30"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: Mapping[str, Any] = json.loads(ended.stdout)
    except json.JSONDecodeError:
        lines = ended.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"pip-audit ended with status {ended.returncode}"
    return found


def main() -> int:
    installed = [(each.name, each.version, licence_of(each.metadata)) for each in distributions()]
    refused = print_licences({name: (name, version, licence) for name, version, licence in installed}.values())
    print(f"licences: {len(refused)} not accepted{': ' + ', '.join(refused) if refused else ''}")
    found = run_pip_audit()
    if isinstance(found, str):
        print(f"vulnerabilities: not looked up: {found}")
        return 1 if refused else 2
    known, skipped = vulnerabilities(found)
    print("\n".join(known), end="\n" if known else "")
    print(f"vulnerabilities: {len(known)} known", end="")
    if skipped:
        print(
            f"; {len(skipped)} of {len(found['dependencies'])} packages not looked up: pypi.org cannot be reached",
            end="",
        )
    print()
    return 1 if refused or known else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
