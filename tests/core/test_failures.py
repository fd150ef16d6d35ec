"""Where the user's own code failed, in one line."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofms.core.failures import describe_failure, last_line, user_line
from ofms.plugins import is_reference


def failure(code: Callable[[], object]) -> Exception:
    try:
        code()
    except Exception as error:
        return error
    raise AssertionError("it does not fail")


def run(text: str, filename: str) -> Exception:
    return failure(lambda: exec(compile(text, filename, "exec"), {"np": np, "is_reference": is_reference}))


def test_the_last_line_of_the_users_own_code_is_named(tmp_path: Path) -> None:
    """Lines of this package and of libraries that it builds on are not the user's, other installed packages are."""
    own = str(tmp_path / "own.py")
    for text in ("\n\nis_reference(3)", "\n\nnp.linalg.inv(np.zeros((2, 2)))"):
        error = run(text, own)
        assert user_line(error) == f"{own}, line 3"
        assert describe_failure(error) == f"{own}, line 3: {type(error).__name__}: {error}"
        assert last_line(error) != user_line(error)
    assert last_line(run("\n\nint('a')", own)) == f"{own}, line 3"


@pytest.mark.parametrize(
    ("folder", "file", "users"),
    [
        ("purelib", "numpy/core.py", False),
        ("purelib", "torch/nn/modules.py", False),
        ("platlib", "click/core.py", False),
        ("purelib", "their_networks/model.py", True),
        ("stdlib", "json/decoder.py", False),
    ],
)
def test_whose_code_a_file_is(folder: str, file: str, users: bool) -> None:
    filename = f"{sysconfig.get_path(folder)}/{file}"
    error = run("\nraise ValueError('here')", filename)
    # The caller in this file is outside of the package, like a user's script.
    assert (user_line(error) == f"{filename}, line 2") is users
    assert last_line(error) == f"{filename}, line 2"


@pytest.mark.parametrize(
    "filename", ["<string>", "<frozen importlib>", str(Path(sys.modules["ofms.core"].__path__[0]) / "x.py")]
)
def test_code_without_a_file_of_the_users_is_not_named(filename: str) -> None:
    error = run("raise ValueError('here')", filename)
    assert user_line(error) is not None
    assert filename not in str(user_line(error))


def test_errors_without_frames_or_text() -> None:
    assert (last_line(ValueError()), user_line(ValueError())) == ("unknown", None)
    assert describe_failure(ValueError()) == "ValueError"
    assert describe_failure(KeyError("a")) == "KeyError: 'a'"
    assert describe_failure(ValueError("two\n  lines")) == "ValueError: two lines"


def test_an_iterator_that_ended_is_found_behind_the_generator_that_it_left(tmp_path: Path) -> None:
    """Python raises another error in its place, without the line of the first."""
    own: dict[str, Any] = {}
    exec(compile("def choose():\n    return next(iter([]))", str(tmp_path / "own.py"), "exec"), own)

    def exchanges() -> Iterator[object]:
        yield own["choose"]()

    error = failure(lambda: next(exchanges()))
    assert isinstance(error, RuntimeError)
    assert describe_failure(error) == f"{tmp_path / 'own.py'}, line 2: StopIteration"


def test_long_texts_are_cut_at_300_characters() -> None:
    assert describe_failure(ValueError("x" * 300)) == f"ValueError: {'x' * 300}"
    assert describe_failure(ValueError("x" * 301)) == f"ValueError: {'x' * 300}…"


def test_a_syntax_error_names_its_own_line(tmp_path: Path) -> None:
    own = str(tmp_path / "own.py")
    error = run("a = 1\nb = = 2", own)
    assert describe_failure(error) == f"{own}, line 2: SyntaxError: invalid syntax"
    assert describe_failure(SyntaxError("no file")) == "SyntaxError: no file"
