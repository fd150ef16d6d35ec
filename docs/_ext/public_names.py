"""The directive `public-names`: documentation of every name that a module exports, from docstrings."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, get_args, get_origin

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ofms.core.declared import allowed_values


class PublicNames(SphinxDirective):
    """Everything in a module's `__all__`, in that order: classes with their members, functions, types.

    With the option `only`, those names; with `except`, all others.
    """

    required_arguments = 1
    optional_arguments = 0
    final_argument_whitespace = False
    option_spec = {"only": str.split, "except": str.split}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        module = import_module(self.arguments[0])
        names = [name for name in module.__all__ if not name.startswith("__")]
        for name in {*self.options.get("only", ()), *self.options.get("except", ())} - {*names}:
            raise self.error(f"{module.__name__} does not export {name}")
        names = self.options.get("only", names)
        lines = ["````{eval-rst}", f".. py:currentmodule:: {module.__name__}", ""]
        for name in names:
            if name not in self.options.get("except", ()):
                lines += _documented(f"{module.__name__}.{name}", getattr(module, name))
        return self.parse_text_to_nodes("\n".join([*lines, "````"]), allow_section_headings=False)


def _documented(path: str, value: object) -> list[str]:
    if inspect.isclass(value):
        return [f".. autoclass:: {path}", "   :members:", ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {path}", ""]
    return [f".. py:data:: {path}", "", f"   {_meaning(value)}", ""]


def _meaning(annotation: object) -> str:
    """A type as users read it: arrays by their numbers, settings by their allowed values."""
    if get_origin(annotation) is np.ndarray:
        return f"NumPy arrays of ``{get_args(get_args(annotation)[1])[0].__name__}``."
    return f"The type of a setting: {allowed_values(annotation)}."


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive."""
    app.add_directive("public-names", PublicNames)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
