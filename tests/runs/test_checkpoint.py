"""When checkpoints are due."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.runs.checkpoint import Checkpoints, Inputs


def test_checkpoints_take_a_fiftieth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("ofms.runs.checkpoint.time.perf_counter", lambda: now)
    checkpoints = Checkpoints(tmp_path, 10.0, {}, Inputs("dictionary", "stream"))

    def due_at(seconds: float) -> bool:
        nonlocal now
        now = seconds
        return checkpoints.due

    assert not due_at(9.9)
    assert due_at(10.0)
    checkpoints._last, checkpoints._cost = 10.0, 1.0
    assert not due_at(59.0), "after one second of writing, fifty seconds pass"
    assert due_at(60.0)
