"""Observers follow a run: its folder, the progress view, trackers, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ofms.runs.checkpoint import Checkpoints
from ofms.runs.folder import resume_command
from ofms.runs.interrupt import RunInterrupted, StopRequest

if TYPE_CHECKING:
    from ofms.runs.result import Result

Line = Mapping[str, Any]


class Observer(Protocol):
    """Learns of rounds as they are done, and of the result."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_rounds(self, lines: Sequence[Line]) -> None:
        """Some more rounds are done: one record per round."""
        ...

    def on_finish(self, result: Result) -> None:
        """The run is finished."""
        ...


class CheckpointObserver:
    """Writes checkpoints while a run goes on, and stops it at the end of an exchange when somebody asks for it.

    Parameters
    ----------
    rounds
        All rounds of the run.
    done, seconds
        How many of them are done already, and how long they took.
    """

    def __init__(self, checkpoints: Checkpoints, rounds: int, *, done: int = 0, seconds: float = 0.0) -> None:
        self.checkpoints, self.rounds, self.done = checkpoints, rounds, done
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
        stopped = self._stop.wanted and self.done < self.rounds
        if stopped or self.checkpoints.due:
            self.checkpoints.write(self.done, time.perf_counter() - self._began)
        if stopped:
            again = f"continue with: {resume_command(self.checkpoints.folder.parent)}"
            raise RunInterrupted(f"stopped after round {self.done} of {self.rounds}; {again}")

    def on_finish(self, result: Result) -> None:
        self.checkpoints.remove()
