"""Where and why code of the user's own failed, in one line."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

# Of this package and of what it builds on; all other code is the user's.
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = frozenset(
    {
        *("torch", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "msgspec", "safetensors"),
        *("click", "tqdm", "jinja2", "filelock", "flwr", "grpc", "mlflow", "tensorboard", "ray"),
    }
)
_MOST = 300


def describe_failure(error: BaseException) -> str:
    """The last line of the user's own code, and the exception; only the exception if none of it ran.

    >>> try:
    ...     int("three")
    ... except ValueError as error:
    ...     describe_failure(error).partition(": ")[2]
    "ValueError: invalid literal for int() with base 10: 'three'"
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    error = _origin(error)
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text[:_MOST]}{'…' if len(text) > _MOST else ''}".removesuffix(": ")
    place = user_line(error)
    return reason if place is None else f"{place}: {reason}"


def user_line(error: BaseException) -> str | None:
    """File and line in which the user's own code failed; None if none of it ran."""
    for frame in reversed(traceback.extract_tb(_origin(error).__traceback__)):
        if not _is_library(frame.filename):
            return f"{frame.filename}, line {frame.lineno}"
    return None


def _origin(error: BaseException) -> BaseException:
    """The error itself, or `StopIteration`, which Python replaces when it leaves a generator."""
    return error.__cause__ if isinstance(error.__cause__, StopIteration) else error


def is_of_policy(error: BaseException) -> bool:
    """Whether it came out of a call on a policy: what one returned may fail in code that several policies share."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(frame.filename).parent == Path(_OURS) / "policies" for frame in frames)


def last_line(error: BaseException) -> str:
    """File and line in which any code failed."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "unknown"


def _is_library(filename: str) -> bool:
    if filename.startswith(("<frozen", "<string>", _OURS)):
        return True
    for name in ("purelib", "platlib"):
        packages = sysconfig.get_path(name)
        if filename.startswith(packages):
            return Path(filename).relative_to(packages).parts[0] in _LIBRARIES
    return any(filename.startswith(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
