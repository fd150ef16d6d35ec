"""Signals that ask a process to stop: Ctrl-C, SIGTERM, and SIGHUP when its terminal closes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_REPEAT_SECONDS = 1.0
_AGAIN_SECONDS = 0.01

Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to stop."""

    def __init__(self, message: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = int(number)


class RunInterrupted(Interrupted):
    """A run was stopped cleanly; the message says how to resume it."""


def end_on_signals() -> None:
    """End the process at once with one line, while modules are imported and there is nothing to clean up."""
    if threading.current_thread() is threading.main_thread():
        _install(_end)


def ignore_signals() -> None:
    """Ignore signals from now on: there is nothing left to stop."""
    if threading.current_thread() is threading.main_thread():
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)


class _Signals:
    """Context in which a signal to stop calls `_note`; one that the process ignores, as after `nohup`, does not.

    Python delivers signals to the main thread only: in other threads it has no effect.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = _install(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _is_repeated(self, number: int) -> bool:
        """Whether it follows another at once: a supervisor may signal the process and its group."""
        if self.number is not None and time.monotonic() - self._since <= _REPEAT_SECONDS:
            return True
        self.number, self._since = number, time.monotonic()
        return False

    def _note(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class StopRequest(_Signals):
    """Context in which a signal sets `wanted` instead of interrupting; a second, later one interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        wanted = self.wanted
        if not self._is_repeated(number) and wanted:
            raise Interrupted(number=number)
        self.wanted = True


class Interruptible(_Signals):
    """Context in which a signal raises `Interrupted`, so that partial files and processes are removed."""

    def __enter__(self) -> Self:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._repeat
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        sys.unraisablehook = self._hook

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._is_repeated(number):
            raise Interrupted(number=number)

    def _repeat(self, ignored: Any) -> None:
        """Raise it again if Python dropped it, as it does in a finalizer or a callback."""
        if not isinstance(ignored.exc_value, Interrupted):
            self._hook(ignored)
            return
        number = ignored.exc_value.number

        def raise_again(alarm: int, frame: FrameType | None) -> None:
            raise Interrupted(number=number)

        signal.signal(signal.SIGALRM, raise_again)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)


def _install(handler: Handler) -> dict[int, Any]:
    """Handle the signals that are not ignored; return the handlers before."""
    handled = [number for number in _NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in handled}


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"ofms: interrupted\n")
    finally:
        os._exit(128 + number)
