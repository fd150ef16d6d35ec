"""The memory that a call takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def bytes_taken(call: Callable[[], object]) -> int:
    """The most bytes that a call needs at once, with its result."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = call()
        most = tracemalloc.get_traced_memory()[1] - before
        del result
        return most
    finally:
        tracemalloc.stop()
