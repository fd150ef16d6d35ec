"""Stop a run at the end of an exchange on Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

_REPEAT_SECONDS = 1.0


class RunInterrupted(KeyboardInterrupt):
    """A run was stopped cleanly; the message says how to resume it."""


class StopRequest:
    """Context in which Ctrl-C or SIGTERM sets `wanted` instead of interrupting; a second, later one interrupts.

    Python delivers signals to the main thread only: in other threads it has no effect.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._since = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        # A terminal or a supervisor may send the same request twice, to the process and to its group.
        if self.wanted and time.monotonic() - self._since > _REPEAT_SECONDS:
            raise KeyboardInterrupt
        if not self.wanted:
            self.wanted, self._since = True, time.monotonic()
