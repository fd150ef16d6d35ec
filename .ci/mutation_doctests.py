"""The examples in docstrings as tests of their own, for `make mutate`.

`pytest --doctest-modules` would also find the docstrings of the mutated copies that stand beside each function.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import ofms.core
import ofms.policies


def examples() -> Iterator[doctest.DocTest]:
    finder, of_a_module = doctest.DocTestFinder(), doctest.DocTestFinder(recurse=False)
    for package in (ofms.core, ofms.policies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            found = importlib.import_module(module.name)
            yield from (test for test in of_a_module.find(found, module.name) if test.examples)
            for name, value in vars(found).items():
                if getattr(value, "__module__", None) == module.name and not name.startswith(("x_", "xǁ")):
                    tests = finder.find(value, f"{module.name}.{name}", found, globs=dict(vars(found)))
                    yield from (test for test in tests if test.examples and "mutmut" not in test.name)


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_an_example(example: doctest.DocTest) -> None:
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0
