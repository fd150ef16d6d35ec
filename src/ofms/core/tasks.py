"""Tasks that are done when they are started."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


def done(task: Callable[[], R]) -> Future[R]:
    """Do a task at once, where it could also be started on a thread.

    >>> done(lambda: 3).result()
    3
    """
    future = Future[R]()
    future.set_result(task())
    return future
