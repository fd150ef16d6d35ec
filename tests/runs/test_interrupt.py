"""Requests to stop a run."""

from __future__ import annotations

import signal

import pytest

from ofms.runs import interrupt
from ofms.runs.interrupt import StopRequest


def test_a_repeated_signal_is_one_request_and_a_later_one_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopRequest()
    with stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert stop.wanted
    with stop:
        monkeypatch.setattr(interrupt, "_REPEAT_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
