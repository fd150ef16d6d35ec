"""Names that a package exports without importing their modules before they are used."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

NO_TORCH = "PyTorch is not installed: pip install 'ofms[torch]'"


def exported(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that exports names from `modules`, module by name.

    >>> exported("example", {"sqrt": "math"})("sqrt")(4.0)
    2.0
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(NO_TORCH, name="torch") from None

    return find
