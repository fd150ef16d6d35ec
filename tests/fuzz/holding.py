"""What must hold for every input, valid or not.

It is accepted, or refused with one line that names the field, the value and the remedy. No other exception, no file
changed outside of the named folders, and no allocation of more than a bounded amount of memory.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ofms.cli import _main
from ofms.core.errors import InvalidInput

T = TypeVar("T")
# What an input may make the process allocate beyond what it has.
_MOST_BYTES = 3 * 2**30
_ALLOCATION = re.compile(r"allocate|MemoryError|bad_alloc|out of memory", re.IGNORECASE)
_LONGEST_LINE = 2000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1}
_CHANGES |= {"os.link": 2, "os.symlink": 2, "shutil.rmtree": 1}


class _Watch:
    """Records the files that this process changes outside of some folders; an audit hook cannot be removed."""

    def __init__(self) -> None:
        self.folders: tuple[str, ...] | None = None
        self.found: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if self.folders is None:
            return
        if event == "open":
            if isinstance(given[2], int) and given[2] & _WRITES:
                self._require_inside(event, given[0])
        elif event in _CHANGES:
            for path in given[: _CHANGES[event]]:
                if event != "os.mkdir" or not os.path.exists(path):
                    self._require_inside(event, path)

    def _require_inside(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.path.realpath(os.fsdecode(path))
        if "__pycache__" in name or name.startswith("/dev/"):
            return
        if not any(name == folder or name.startswith(f"{folder}/") for folder in self.folders or ()):
            self.found.append(f"{event} {name}")


_watch = _Watch()


@contextmanager
def bounded(*writable: Path) -> Iterator[None]:
    """Within the block, files change in these folders only, and memory is bounded."""
    folders = [*writable, Path(os.environ["XDG_CACHE_HOME"]), Path(tempfile.gettempdir(), "torchinductor_")]
    _watch.found, _watch.folders = [], tuple(os.path.realpath(folder) for folder in folders)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        _watch.folders = None
    assert not _watch.found, f"files outside of the named folders: {_watch.found}"


def require_line(text: str) -> None:
    """One printable line that is not about memory that was requested in vain."""
    assert len(text.splitlines()) == 1, f"not one line: {text!r}"
    assert text.isprintable(), f"not printable: {text!r}"
    assert len(text) <= _LONGEST_LINE, f"too long: {text!r}"
    assert not _ALLOCATION.search(text), f"allocated without bound: {text!r}"


def require_refusal(error: InvalidInput) -> None:
    """An error names field, value and remedy in one line."""
    assert error.field
    assert error.remedy
    require_line(str(error))


@contextmanager
def refusing(*writable: Path, other: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[list[Exception]]:
    """Within the block, input is accepted or refused; yields a list to which a refusal is added."""
    refused: list[Exception] = []
    with bounded(*writable):
        try:
            yield refused
        except InvalidInput as error:
            require_refusal(error)
            refused.append(error)
        except other as error:
            refused.append(error)


def accepted(call: Callable[..., T], *given: Any, writes: Sequence[Path] = (), **named: Any) -> T | None:
    """What a function returns, or None if it refuses its input."""
    found: list[T] = []
    with refusing(*writes):
        found.append(call(*given, **named))
    return found[0] if found else None


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def command(*arguments: str | Path, writes: Sequence[Path] = ()) -> Outcome:
    """Run a command line in this process; it succeeds, or ends with status 2 and one line."""
    out, err = io.StringIO(), io.StringIO()
    with bounded(*writes), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = _main([str(argument) for argument in arguments])
    outcome = Outcome(status, out.getvalue(), err.getvalue())
    assert "internal error" not in outcome.err, outcome.err
    assert "Traceback" not in outcome.err, outcome.err
    if status == 0:
        return outcome
    # Progress is overwritten, not a line of its own; warnings and, with -v, details come before the refusal.
    lines = [line.rpartition("\r")[2] for line in outcome.err.splitlines()]
    lines = [line for line in lines if line and not re.match(r"warning: |[0-9:]{8} ofms\.", line)]
    assert len(lines) == 1, f"not one line: {outcome.err!r}"
    require_line(lines[0])
    assert lines[0].startswith("ofms: ")
    # A run may diverge although its configuration is valid.
    assert status == 2 or (status == 1 and "finite" in lines[0]), f"status {status}: {lines[0]}"
    return outcome
