"""Requests to stop a run."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from ofms.runs import interrupt
from ofms.runs.interrupt import Interrupted, Interruptible, StopRequest


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_all_signals_that_ask_to_stop_are_requests(number: int) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        signal.raise_signal(number)
    assert (stop.wanted, stop.number) == (True, number)
    assert signal.getsignal(number) == before
    with pytest.raises(Interrupted) as interruption, Interruptible():
        signal.raise_signal(number)
    assert interruption.value.number == number


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As after `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        for context in (StopRequest(), Interruptible()):
            with context:
                signal.raise_signal(signal.SIGHUP)
            assert context.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interruption_that_python_drops_comes_again() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    ended = False
    with contextlib.suppress(Interrupted), Interruptible():
        made: Finalized | None = Finalized()
        made = None  # noqa: F841
        time.sleep(60)
        ended = True
    assert not ended
