"""Progress of a run: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tqdm import tqdm

from ofms.runs.units import human_bytes
from ofms.runs.warning_lines import quarantine_line, quarantined_models

_SECONDS_BETWEEN_LINES = 10.0
_log = logging.getLogger(__name__)


def _show(line: str) -> None:
    """Log a line; print it where nobody has asked for the log, since the caller asked for progress."""
    if _log.isEnabledFor(logging.INFO):
        _log.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


def log_quarantine(lines: Sequence[Mapping[str, Any]], *, shown: bool) -> None:
    """Log which models diverged in some rounds; as a warning if the progress of the run is shown.

    The warnings of the result say it in any case.
    """
    if quarantined := quarantined_models(lines):
        with tqdm.external_write_mode(file=sys.stderr):
            _log.log(logging.WARNING if shown else logging.INFO, quarantine_line(quarantined))


class Progress:
    """Progress and remaining time, the metric, regret, memory and bytes so far.

    In a terminal two lines are redrawn; elsewhere a line is printed every ten seconds and at the end.
    """

    def __init__(self, name: str, metric: str, rounds: int, *, before: Sequence[Mapping[str, Any]]) -> None:
        self.name, self.metric, self.rounds, self.done = name, metric, rounds, len(before)
        self.live = sys.stderr.isatty()
        self._began = self._last = time.monotonic()
        self._start = self.done
        self._down, self._up = 0, 0
        self._count(before)

    def __enter__(self) -> Self:
        self._bar: tqdm[Any] = tqdm(
            total=self.rounds,
            initial=self.done,
            desc=self.name,
            unit="round",
            disable=not self.live,
            dynamic_ncols=True,
        )
        self._figures: tqdm[Any] = tqdm(
            total=0, bar_format="{desc}", disable=not self.live, dynamic_ncols=True, leave=True
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._figures.close()
        self._bar.close()

    def on_finish(self, result: object) -> None:
        """Nothing more to show."""

    def on_rounds(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Show further rounds."""
        self.done += len(lines)
        self._count(lines)
        if self.live:
            self._figures.set_description_str(f"  {self.figures(lines[-1])}", refresh=False)
            self._bar.update(len(lines))
            if time.monotonic() - self._last > 0.1 or self.done == self.rounds:
                self._last = time.monotonic()
                self._figures.refresh()
        elif self.done == self.rounds or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            left = (self._last - self._began) / max(1, self.done - self._start) * (self.rounds - self.done)
            done = f"round {self.done} of {self.rounds}, {left:.0f} s left"
            _show(f"{self.name}: {done}; {self.figures(lines[-1])}")

    def _count(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._down += sum(line["down"] for line in lines)
        self._up += sum(line["up"] for line in lines)

    def figures(self, line: Mapping[str, Any]) -> str:
        """The figures of a round, in one line."""
        parts = [f"{self.metric} {line['mean']:.4f}"]
        if "frozen" in line:
            parts.append(f"frozen {line['frozen']:.4f}")
        if "regret" in line:
            parts.append(f"regret {line['regret']:.2f}")
        parts.append(f"held {human_bytes(line['held'])} per client")
        parts.append(f"down {human_bytes(self._down)}, up {human_bytes(self._up)}")
        return ", ".join(parts)
