"""The source files on which a module depends, found without importing anything."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType

_IMPORTERS = ("import_module", "__import__")
_NOT_FOLLOWED = frozenset({"ofms", "__main__", *sys.stdlib_module_names})


def is_installed(folder: Path) -> bool:
    """Whether it is a folder of Python itself or of installed packages, or inside of one of the latter."""
    if {"site-packages", "dist-packages"} & {*folder.parts}:
        return True
    return str(folder) in {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}


def source_files(module: str, folders: Iterable[str], held: Iterable[Path]) -> set[Path]:
    """The files of a module, of its packages, and of the modules that they import, except installed ones.

    Of an installed package, its own modules count. `held` are further files to begin with.
    """
    package = module.partition(".")[0]
    places = [*folders]
    places += [str(root)] if (root := _root(package, places)) is not None else []
    roots: dict[str, Path | None] = {}
    found = {*held}
    waiting = [module, *(name for path in held for name in _imports(path, ""))]
    while waiting:
        parts = waiting.pop().split(".")
        if parts[0] not in roots:
            own = parts[0] == package
            roots[parts[0]] = _root(parts[0], places) if own or parts[0] not in _NOT_FOLLOWED else None
            if not own and (there := roots[parts[0]]) is not None and is_installed(there):
                roots[parts[0]] = None
        if (root := roots[parts[0]]) is None:
            continue
        for length in range(1, len(parts) + 1):
            base = root.joinpath(*parts[:length])
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path not in found and path.is_file():
                    found.add(path)
                    inside = ".".join(parts[: length if path.name == "__init__.py" else length - 1])
                    waiting += _imports(path, inside)
    return found


def held_files(module: ModuleType) -> frozenset[Path]:
    """The files of modules that are not installed and of which a module has objects; what these have counts too.

    A module that is imported by a computed name, or from a file, cannot be found in the source of the one that does.
    """
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            if isinstance(value, ModuleType):
                other: ModuleType | None = value
            elif isinstance(value, type | FunctionType):
                other = sys.modules.get(value.__module__)
            else:
                other = sys.modules.get(type(value).__module__)
            path = getattr(other, "__file__", None)
            if other is None or not isinstance(path, str) or not path.endswith(".py"):
                continue
            if other.__name__.partition(".")[0] in _NOT_FOLLOWED or is_installed(Path(path).absolute().parent):
                continue
            if Path(path).absolute() not in found:
                found.add(Path(path).absolute())
                waiting.append(other)
    return frozenset(found)


def _root(package: str, folders: Sequence[str]) -> Path | None:
    """The folder that has a top-level package or module, looked for in `folders` first; None if there is none."""
    spec = PathFinder.find_spec(package, folders) or PathFinder.find_spec(package)
    if spec is None:
        # Packages that are installed from where they are edited have finders of their own.
        with suppress(ImportError, ValueError):
            spec = find_spec(package)
    if spec is None:
        return None
    # A folder without `__init__.py` is a package too, and has no origin.
    places = [Path(place) for place in spec.submodule_search_locations or ()] or [Path(str(spec.origin))]
    return places[0].absolute().parent


def _imports(path: Path, package: str) -> list[str]:
    """The modules that a file of a package may import, also by a call with their name; none if it cannot be parsed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names = []

    def add(module: str, level: int, inside: Iterable[str] = ()) -> None:
        parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        base = ".".join([*parts, *([module] if module else [])])
        names.extend([f"{base}.{name}" if base else name for name in inside] or [base])

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            add(node.module or "", node.level, [each.name for each in node.names])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _IMPORTERS:
            name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if isinstance(name, str):
                add(name.lstrip("."), len(name) - len(name.lstrip(".")))
    return names
