"""httpx without its command line, whose libraries (Click, Rich, Pygments) would take 6 MiB of a device's memory."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_COMMAND_LINE = "httpx._main"


@contextmanager
def _without_command_line() -> Iterator[None]:
    """Within the block, httpx finds no command line, as where those libraries are not installed."""
    if "httpx" in sys.modules:
        yield
        return
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(_COMMAND_LINE, None)


with _without_command_line():
    import httpx


class _WithoutQuietThreads(logging.Filter):
    """Leaves out what httpx logs about each request of threads that poll."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not getattr(self.threads, "quiet", False)


_filter = _WithoutQuietThreads()
logging.getLogger("httpx").addFilter(_filter)


def silence_requests() -> None:
    """Let httpx not log the requests of this thread: a program that logs would get a line for each poll."""
    _filter.threads.quiet = True


__all__ = ["httpx", "silence_requests"]
