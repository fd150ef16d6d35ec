"""Paths and names in the documentation exist."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from ofms.policies.ofms_ft_settings import OFMSFT

ROOT = Path(__file__).parent.parent
ALGORITHM = ROOT / "docs/algorithm.md"
# The page of results is generated, and lists hundreds of commands.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*ROOT.glob("docs/*.md")} - {ROOT / "docs/results.md"})]


@cache
def defined_names(path: Path) -> frozenset[str]:
    """Functions and classes of a file, with `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return frozenset(names)


def test_every_function_of_the_algorithm_page_is_where_the_page_says() -> None:
    found = 0
    for row in ALGORITHM.read_text().partition("\n## ")[0].splitlines():
        path = None
        for quoted in re.findall(r"`([^`]+)`", row):
            if "/" in quoted and not quoted.startswith("src/"):
                path = ROOT / quoted if quoted.startswith("tests/") else ROOT / "src/ofms" / quoted
                assert path.is_file(), quoted
            elif path is not None:
                assert quoted in defined_names(path), f"{path}: {quoted}"
                found += 1
    assert found > 30


def test_every_setting_of_the_algorithm_page_exists() -> None:
    table = ALGORITHM.read_text().partition("\n## ")[2]
    named = re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)
    assert sorted(named) == sorted(field.name for field in fields(OFMSFT))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_names_of_the_package_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for name in set(re.findall(r"`(ofms(?:\.\w+)+)", text)):
        _resolve(name)


def test_every_page_is_in_the_table_of_contents_of_the_site() -> None:
    text = (ROOT / "docs/index.md").read_text()
    listed = [line for block in re.findall(r"```{toctree}\n(.*?)```", text, flags=re.DOTALL) for line in block.split()]
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        name = str(page.with_suffix(""))
        if name != "index" and page.parts[0] != "results":
            assert name in listed, f"docs/{page}: name it in a list of docs/index.md"


def test_the_reference_has_every_public_name_once() -> None:
    """Of every package that lists its names; that of the command is documented by its options."""
    text = (ROOT / "docs/reference/python.md").read_text()
    documented: dict[str, list[str]] = {}
    for package, only, others in re.findall(
        r"```\{public-names\} (\S+)\n(?::only: (.*)\n)?(?::except: (.*)\n)?```", text
    ):
        documented.setdefault(package, []).extend(only.split() or _public_names(package))
        for name in others.split():
            assert f"`{package}.{name}` is `ofms.{name}`" in text
            assert getattr(import_module(package), name) is getattr(import_module("ofms"), name)
    packages = ["ofms", *(f"ofms.{path.parent.name}" for path in sorted(ROOT.glob("src/ofms/*/__init__.py")))]
    public = {name: _public_names(name) for name in packages if name != "ofms.cli"}
    for package, names in public.items():
        assert sorted(documented.get(package, [])) == sorted(names), f"docs/reference/python.md: names of {package}"
    assert documented.keys() == {package for package, names in public.items() if names}


def _public_names(package: str) -> list[str]:
    return [name for name in getattr(import_module(package), "__all__", []) if not name.startswith("__")]


def _resolve(name: str) -> object:
    """Import a module, or a name of one."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(_resolve(module), attribute)
