"""httpx without its command line, whose libraries (Click, Rich, Pygments) would take 6 MiB of a device's memory."""

from __future__ import annotations

import sys
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

__all__ = ["httpx"]
