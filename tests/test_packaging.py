"""Imports: third-party packages are declared, and tests share helpers through modules that are not tests."""

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

from ofms import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ofms"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The extras that a package may import from. All other imports are dependencies of every installation, or PyTorch, which
# only a device without it lacks.
EXTRAS = {
    "compute": {"export"},
    "coordinator": {"flower"},
    "data": {"experiments", "parquet"},
    "drawing": {"experiments"},
    "flower": {"flower"},
    "report": {"experiments"},
    "reproduction": {"experiments"},
    "runs": {"experiments", "tensorboard", "mlflow"},
    "simulator": {"experiments"},
}
# Packages that need their extra; all others can be imported without any.
NEED_THEIR_EXTRA = ("coordinator", "flower")
MODULES = sorted(SOURCE.rglob("*.py"))
WITHOUT_EXTRAS = [path for path in MODULES if path.relative_to(SOURCE).parts[0] not in NEED_THEIR_EXTRA]
TESTS = Path(__file__).parent


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    """Names of requirements; extras of this package are replaced by their own requirements."""
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


ALWAYS = declared(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["torch"])


@cache
def distributions() -> dict[str, set[str]]:
    return {name: {normalised(each) for each in found} for name, found in packages_distributions().items()}


def imported_modules(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Each import statement of a file and the modules that it names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def third_party_imports(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Each import statement of a file and the top-level package that it names."""
    own = set(sys.stdlib_module_names) | {"ofms", "tests"} | {each.stem for each in path.parent.glob("*.py")}
    for node, name in imported_modules(path):
        top = name.partition(".")[0]
        if top not in own:
            yield node, top


def undeclared(path: Path, allowed: set[str]) -> list[str]:
    found = {name for _, name in third_party_imports(path)}
    return sorted(name for name in found if not distributions().get(name, {normalised(name)}) & allowed)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_are_declared(path: Path) -> None:
    allowed = ALWAYS
    for extra in EXTRAS.get(path.relative_to(SOURCE).parts[0], ()):
        allowed |= declared(PROJECT["optional-dependencies"][extra])
    assert undeclared(path, allowed) == []


@pytest.mark.parametrize("path", WITHOUT_EXTRAS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_without_extras_modules_can_be_imported(path: Path) -> None:
    """Packages of an extra are imported where they are used, not at the top of a module."""
    needed = {name for node, name in third_party_imports(path) if node.col_offset == 0}
    assert [name for name in sorted(needed) if not distributions().get(name, set()) & ALWAYS] == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_imports_around_the_package_are_declared(folder: str) -> None:
    extras = PROJECT["optional-dependencies"]
    allowed = declared(PROJECT["dependencies"]) | declared(extras["dev"]) | declared(extras["bench"])
    found = {str(path.relative_to(ROOT)): undeclared(path, allowed) for path in (ROOT / folder).rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_examples_import_no_deeper_than_a_package() -> None:
    for path in sorted((ROOT / "examples").rglob("*.py")):
        deep = re.findall(r"(?:from|import) (ofms\.\w+\.[\w.]+)", path.read_text())
        assert not deep, (path.name, deep)


def test_no_helper_is_imported_from_a_test_module() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TESTS.rglob("test_*.py")}
    assert len(names) > 50
    found = []
    for path in TESTS.rglob("*.py"):
        for node, module in imported_modules(path):
            members = [f"{module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.relative_to(ROOT)}: {name}" for name in (module, *members) if name in names]
    assert found == []


def test_every_package_has_a_folder_of_tests() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == {path.parent.name for path in TESTS.glob("*/__init__.py")} - {"fuzz"}


CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_the_conda_recipe_requires_what_pyproject_does() -> None:
    """Dependencies and the extra `experiments`, in the same versions; the same version of the package and Python."""
    recipe = (ROOT / "recipe/meta.yaml").read_text()
    run = recipe.partition("\n  run:\n")[2].partition("\ntest:")[0]
    found = dict(re.findall(r"^    - (\S+) (>=\S+)$", run, flags=re.MULTILINE))
    wanted = {"python": PROJECT["requires-python"]}
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *extras["torch"], *extras["experiments"]]:
        if not requirement.startswith("ofms["):
            name, version = requirement.split(">=")
            wanted[CONDA_NAMES.get(name, name)] = f">={version}"
    assert found == wanted
    assert f'version = "{__version__}"' in recipe
    command, target = next(iter(PROJECT["scripts"].items()))
    assert f"- {command} = {target}" in recipe


def test_the_citation_has_the_version_and_its_required_fields() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    for key in ("cff-version", "message", "title", "authors"):
        assert re.search(rf"^{key}:", citation, flags=re.MULTILINE), key
