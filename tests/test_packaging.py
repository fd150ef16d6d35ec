"""What the package imports, it declares: in its dependencies, or in the extra that the importing package belongs to."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ofms"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The extras that a package's own imports may come from. What none of them declares is a dependency of all users.
EXTRAS = {
    "coordinator": {"flower"},
    "data": {"experiments", "parquet"},
    "drawing": {"experiments"},
    "flower": {"flower"},
    "report": {"experiments"},
    "reproduction": {"experiments"},
    "runs": {"experiments", "tensorboard", "mlflow"},
    "simulator": {"experiments"},
}
# Installed with their extra only; all others are imported without any extra.
NEED_THEIR_EXTRA = ("coordinator", "flower")
MODULES = sorted(SOURCE.rglob("*.py"))


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    """The names of requirements; of those with extras of this package, what these declare."""
    names: set[str] = set()
    for requirement in requirements:
        parts = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?", requirement)
        assert parts is not None, requirement
        if parts[1] == PROJECT["name"]:
            for extra in parts[2].split(","):
                names |= declared(PROJECT["optional-dependencies"][extra.strip()])
        else:
            names.add(normalised(parts[1]))
    return names


@cache
def distributions() -> dict[str, set[str]]:
    return {name: {normalised(each) for each in found} for name, found in packages_distributions().items()}


def third_party_imports(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Each import statement of a file and the top-level package that it names."""
    own = set(sys.stdlib_module_names) | {"ofms", "tests"} | {each.stem for each in path.parent.glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top not in own:
                yield node, top


def undeclared(path: Path, allowed: set[str]) -> list[str]:
    found = {name for _, name in third_party_imports(path)}
    return sorted(name for name in found if not distributions().get(name, {normalised(name)}) & allowed)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_are_declared(path: Path) -> None:
    allowed = declared(PROJECT["dependencies"])
    for extra in EXTRAS.get(path.relative_to(SOURCE).parts[0], ()):
        allowed |= declared(PROJECT["optional-dependencies"][extra])
    assert undeclared(path, allowed) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_without_extras_modules_can_be_imported(path: Path) -> None:
    """What an extra declares is imported where it is used, not at the top of a module."""
    if path.relative_to(SOURCE).parts[0] in NEED_THEIR_EXTRA:
        return
    always = declared(PROJECT["dependencies"])
    needed = {name for node, name in third_party_imports(path) if node.col_offset == 0}
    assert [name for name in sorted(needed) if not distributions().get(name, set()) & always] == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_imports_around_the_package_are_declared(folder: str) -> None:
    extras = PROJECT["optional-dependencies"]
    allowed = declared(PROJECT["dependencies"]) | declared(extras["dev"]) | declared(extras["bench"])
    found = {str(path.relative_to(ROOT)): undeclared(path, allowed) for path in (ROOT / folder).rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}
