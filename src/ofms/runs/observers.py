"""Observers of a run: its folder, progress, trackers, checkpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ofms.runs.checkpoint import Checkpoints
from ofms.runs.folder import resume_command
from ofms.runs.interrupt import RunInterrupted, StopRequest

if TYPE_CHECKING:
    from ofms.runs.result import Result

Line = Mapping[str, Any]


class Observer(Protocol):
    """Is notified of completed rounds, and of the result."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_rounds(self, lines: Sequence[Line]) -> None:
        """Handle completed rounds: one record per round."""
        ...

    def on_finish(self, result: Result) -> None:
        """Handle the end of the run."""
        ...


class CheckpointObserver:
    """Write checkpoints during a run, and stop it at the end of an exchange on a signal.

    Parameters
    ----------
    rounds
        Total number of rounds.
    done, seconds
        Rounds completed before, and the time that they took.
    agree
        Whether to stop, and whether to write a checkpoint, from what this process would do; the same in all processes.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        rounds: int,
        *,
        done: int = 0,
        seconds: float = 0.0,
        agree: Callable[[bool, bool], tuple[bool, bool]] = lambda stop, due: (stop, due),
    ) -> None:
        self.checkpoints, self.rounds, self.done, self._agree = checkpoints, rounds, done, agree
        self._began = time.perf_counter() - seconds
        self._stop = StopRequest()

    def __enter__(self) -> Self:
        self._stop.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.__exit__(kind, error, trace)

    def on_rounds(self, lines: Sequence[Line]) -> None:
        self.done += len(lines)
        wanted, due = self._agree(self._stop.wanted, self.checkpoints.due)
        stopped = wanted and self.done < self.rounds
        if stopped or due:
            self.checkpoints.write(self.done, time.perf_counter() - self._began)
        if stopped:
            remedy = f"continue with: {resume_command(self.checkpoints.folder.parent)}"
            message = f"stopped after round {self.done} of {self.rounds}; {remedy}"
            raise RunInterrupted(message, self._stop.number or signal.SIGINT)

    def on_finish(self, result: Result) -> None:
        self.checkpoints.remove()
