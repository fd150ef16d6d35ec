"""What commands say besides their result: Python's `logging`, to standard error; `-q` for less, `-v` for more."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from ofms.core.logs import JsonFormatter

_LOGGER = logging.getLogger("ofms")
# Handlers of the command that has just ended, if it logged JSON.
_of_machines: list[logging.Handler] = []
Command = TypeVar("Command", bound=Callable[..., Any])


class _StandardError(logging.Handler):
    """Lines on standard error as it is at that time, past a progress bar; the same warning only once.

    A command that runs many simulations of one stream gets what that warns about from each of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if record.levelno == logging.WARNING:
            if line in self._warned:
                return
            self._warned.add(line)
        click.echo(line, err=True)


class _Lines(logging.Formatter):
    """The message; before it the level if it is a warning, and time and logger if it is for debugging."""

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        if record.levelno >= logging.WARNING:
            return f"{record.levelname.lower()}: {message}"
        if record.levelno <= logging.DEBUG:
            return f"{self.formatTime(record, '%H:%M:%S')} {record.name}: {message}"
        return message


@contextmanager
def printed_log() -> Iterator[None]:
    """Print the package's log to standard error, from level INFO on."""
    _of_machines.clear()
    handler, handlers = _StandardError(), _LOGGER.handlers[:]
    level, propagate = _LOGGER.level, _LOGGER.propagate
    handler.setFormatter(_Lines())
    _LOGGER.handlers[:] = [handler]
    _LOGGER.setLevel(logging.INFO)
    # Where the user has no folder for its cache, Matplotlib gives advice to programmers.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        yield
    finally:
        # Servers and devices set up their own log.
        _of_machines[:] = [each for each in _LOGGER.handlers if isinstance(each.formatter, JsonFormatter)]
        _LOGGER.handlers[:] = handlers
        _LOGGER.propagate = propagate
        _LOGGER.setLevel(level)


def log_last_line(line: str) -> bool:
    """Log as JSON how the command ended, if it logged so; whether it did."""
    for handler in _of_machines:
        handler.handle(_LOGGER.makeRecord(_LOGGER.name, logging.ERROR, "", 0, "%s", (line,), None))
    return bool(_of_machines)


def log_options(command: Command) -> Command:
    """`-q` and `-v`; the command gets `quiet`, whether to print nothing but its result."""

    @click.option("-q", "--quiet", is_flag=True, help="Print the result, warnings and errors alone.")
    @click.option("-v", "--verbose", is_flag=True, help="Also print what happens inside: files, checkpoints, times.")
    @functools.wraps(command)
    def logged(*, quiet: bool, verbose: bool, **given: Any) -> Any:
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose exclude each other")
        _LOGGER.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
        return command(quiet=quiet, **given)

    return logged  # type: ignore[return-value]
