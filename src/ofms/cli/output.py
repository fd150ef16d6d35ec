"""Standard output and error that may be closed, full, or a pipe that has ended: a command still does its work."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

# 128 + SIGPIPE: what a shell reports for a command whose reader has ended.
_ENDED_PIPE = 141


class _Tolerant(io.FileIO):
    """A stream that keeps the first error of a write and drops everything after it."""

    failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        if self.failure is None:
            try:
                return super().write(content)
            except OSError as error:
                self.failure = error
        return memoryview(content).nbytes


class Output:
    """Standard output and error of the process, from now on tolerant."""

    def __init__(self) -> None:
        _fill_closed_descriptors()
        self._raw = _Tolerant(1, "wb", closefd=False)
        sys.stdout = _text(self._raw, sys.stdout)
        sys.stderr = _text(_Tolerant(2, "wb", closefd=False), sys.stderr)

    def finish(self, status: int) -> int:
        """Write what is buffered; the exit status of a command that ended with `status`."""
        sys.stdout.flush()
        failure = self._raw.failure
        if failure is not None and status == 0:
            status = _ENDED_PIPE if failure.errno == errno.EPIPE else 1
            if status != _ENDED_PIPE:
                sys.stderr.write(f"ofms: standard output: {failure.strerror}\n")
        sys.stderr.flush()
        return status


def _fill_closed_descriptors() -> None:
    """Open the null device for each closed standard stream; otherwise the next file opened would take its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    """A text stream with the settings of the one before; what its encoding lacks is replaced."""
    options = {} if before is None else {"encoding": before.encoding}
    errors = "replace" if before is None or before.errors == "strict" else before.errors
    through = isinstance(before, io.TextIOWrapper) and before.write_through
    lines = isinstance(before, io.TextIOWrapper) and before.line_buffering
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, errors=errors, line_buffering=lines, write_through=through, **options)
