"""Plug-ins: user-defined policies, architectures and datasets, named as `package.module:name`.

Importing a module runs it. A reference in a file or a message is therefore resolved only in packages that the user
trusts, which is checked before anything is imported.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.core.failures import describe_failure
from ofms.source_files import held_files, is_installed, source_files

SYNTAX = "package.module:name"
_REFERENCE = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
# What `held_files` found when a module was imported, by its name.
_held: dict[str, frozenset[Path]] = {}


@dataclass(frozen=True)
class Trust:
    """Packages that plug-ins may be imported from.

    Attributes
    ----------
    packages
        Names of packages or modules; submodules of a trusted package are trusted.
    folders
        Folders to search before Python's path.

    Examples
    --------
    >>> Trust(("pumps",)).covers("pumps.networks"), Trust(("pumps",)).covers("pumps2")
    (True, False)
    """

    packages: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for package in self.packages:
            if not all(part.isidentifier() for part in package.split(".")):
                raise InvalidInput("trust", package, "name a package, as in --trust package")

    def covers(self, module: str) -> bool:
        """Whether a module belongs to a trusted package."""
        return any(module == package or module.startswith(f"{package}.") for package in self.packages)

    def __or__(self, other: Trust) -> Trust:
        return Trust(
            tuple(dict.fromkeys([*self.packages, *other.packages])),
            tuple(dict.fromkeys([*self.folders, *other.folders])),
        )


NO_TRUST = Trust()


def trust_of(given: Trust | str | Iterable[str]) -> Trust:
    """Trust from a record or from names of packages, with the folders where these are found now.

    Nothing is imported. Installed packages are found on Python's path and get no folder.
    """
    if isinstance(given, Trust):
        return given
    packages = (given,) if isinstance(given, str) else tuple(given)
    folders = [_folder_of(package.partition(".")[0]) for package in packages]
    return Trust(packages, tuple(dict.fromkeys(folder for folder in folders if folder is not None)))


def _folder_of(package: str) -> str | None:
    """The folder of a top-level package or module; None if it is installed or not found."""
    spec = PathFinder.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations is not None:
        folder = Path(next(iter(spec.submodule_search_locations))).absolute().parent
    else:
        folder = Path(str(spec.origin)).absolute().parent
    return None if is_installed(folder) else str(folder)


def is_reference(text: str) -> bool:
    """Whether a string has the form `package.module:name`."""
    return _REFERENCE.fullmatch(text) is not None


def module_of(reference: str) -> str:
    """The module of a reference.

    >>> module_of("pumps.networks:small")
    'pumps.networks'
    """
    return reference.partition(":")[0]


def source_key(references: Iterable[str], trusted: Trust, *, imported: bool = False) -> list[str]:
    """SHA-256 of the source of each reference among some names: of its module, and of what that imports.

    Installed packages do not count, except the module's own. Other names, such as those of built-in policies, have
    none. Nothing is imported.

    Parameters
    ----------
    imported
        Whether the modules have been imported by `load_object`. Then those that they imported by computed names count,
        if they have an object of them.
    """
    keys = []
    for module in sorted({module_of(reference) for reference in references if is_reference(reference)}):
        digest = hashlib.sha256()
        for path in sorted(source_files(module, trusted.folders, _held.get(module, ()) if imported else ())):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        keys.append(f"{module} {digest.hexdigest()[:16]}")
    return keys


def loaded_source_key(references: Iterable[str]) -> list[str]:
    """`source_key` of references whose modules have been imported, wherever they came from."""
    references, folders = list(references), []
    for reference in filter(is_reference, references):
        package = sys.modules.get(module_of(reference).partition(".")[0])
        places = [Path(place) for place in getattr(package, "__path__", ())]
        places += [Path(file)] if not places and (file := getattr(package, "__file__", None)) else []
        folders += [place.absolute().parent for place in places[:1]]
    trusted = Trust(folders=tuple(str(each) for each in folders if not is_installed(each)))
    return source_key(references, trusted, imported=True)


def load_object(reference: str, *, field: str, trusted: Trust) -> Any:
    """Import the object that `package.module:name` refers to.

    Parameters
    ----------
    field
        The name of the reference in errors.
    trusted
        Where it may come from. A function or class must also be defined there: what a trusted module imports from
        elsewhere is not trusted.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise InvalidInput(field, reference, f"write it as {SYNTAX}")
    module_name, name = match["module"], match["name"]
    if not trusted.covers(module_name):
        raise _untrusted(field, reference, module_name)
    with _found_first(trusted):
        module = _import(module_name, field, reference)
    try:
        found = getattr(module, name)
    except AttributeError:
        remedy = f"module {module_name} has no {name!r}"
        if module_name.partition(".")[0] in sys.stdlib_module_names:
            remedy = f"{module_name} is a module of Python itself; give your file another name"
        raise InvalidInput(field, reference, remedy) from None
    defined_in = getattr(found, "__module__", None) or ""
    if (inspect.isroutine(found) or inspect.isclass(found)) and not trusted.covers(defined_in):
        raise _untrusted(field, reference, defined_in or "builtins")
    return found


def _untrusted(field: str, reference: str, module: str) -> InvalidInput:
    package = module.partition(".")[0]
    return InvalidInput(
        field,
        reference,
        f"it would run code from {module}, which is not trusted; if you know that package, "
        f'add --trust {package} (in Python trust=({package!r},), in an experiment [trust] packages = ["{package}"])',
    )


def _import(module: str, field: str, reference: str) -> Any:
    known = module in sys.modules and module in _held
    try:
        found = import_module(module)
        if not known:
            _held[module] = held_files(found)
        return found
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            where = "in the current folder, the experiment's folder, or the installed packages"
            raise InvalidInput(field, reference, f"there is no module {error.name} {where}") from None
        raise InvalidInput(field, reference, describe_failure(error)) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A plug-in may raise anything.
        raise InvalidInput(field, reference, describe_failure(error)) from error


class _TrustedFinder:
    """Finds trusted packages in their folders before anywhere else; no file there replaces another module."""

    def __init__(self, trusted: Trust) -> None:
        self._names = {package.partition(".")[0] for package in trusted.packages} - sys.stdlib_module_names
        self._folders = [*trusted.folders]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._folders) if path is None and name in self._names else None


@contextmanager
def _found_first(trusted: Trust) -> Iterator[None]:
    """Import trusted packages from their folders, and what they import from there if it is nowhere else."""
    finder = _TrustedFinder(trusted)
    sys.meta_path.insert(0, finder)
    sys.path += [folder for folder in trusted.folders if folder not in sys.path]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
