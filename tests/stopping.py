"""Stop runs after some exchanges, as Ctrl-C does."""

from __future__ import annotations

from typing import Any, Self

import pytest

from ofms.runs import observers
from ofms.runs.interrupt import StopRequest


def stop_after(monkeypatch: pytest.MonkeyPatch, exchanges: int) -> None:
    """Request a stop, as Ctrl-C does, after some exchanges of every run."""

    class Stopping(StopRequest):
        seen = 0

        def __enter__(self) -> Self:
            return self

        def __getattribute__(self, name: str) -> Any:
            if name == "wanted":
                self.seen += 1
                return self.seen >= exchanges
            return super().__getattribute__(name)

    monkeypatch.setattr(observers, "StopRequest", Stopping)
