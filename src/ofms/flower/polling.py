"""When a node asks the SuperLink for messages: soon where one is expected, seldom otherwise.

A SuperLink spends about 10 ms on a request, so most of its work in a fleet of idle nodes would be their polls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_SOONEST, _LATEST = 0.1, 10.0
# Before the first message; after that, the previous exchange tells how long the others take.
_LATEST_AT_FIRST, _SLOWER = 3.0, 1.5
# Polls while waiting as long as usual, and before that.
_POLLS, _UNTIL_FIRST = 8, 0.5
# The shortest of so many pauses is the usual one: a device that missed an exchange must not be late for the next one.
_PAUSES = 3
# The share of a poll's time in the time between two: a SuperLink that answers slowly is polled less often.
_MOST_SHARE = 0.1


class Polling:
    """Seconds until the next poll.

    >>> now = [0.0]
    >>> polling = Polling(lambda: now[0])
    >>> [round(polling.after_nothing(0.01, asked=False), 3) for _ in range(2)]
    [0.15, 0.225]
    >>> polling.after_answer()
    0.1
    >>> now[0] = 40.0  # The next message arrives after 40 s.
    >>> polling.after_message(), polling.after_answer(), polling.after_nothing(0.01, asked=False)
    (10.0, 10.0, 5.0)
    >>> now[0] = 44.0  # And one after 4 s.
    >>> polling.after_message(), polling.after_answer(), polling.after_nothing(0.01, asked=False)
    (10.0, 2.0, 0.5)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered: float | None = None
        # How long the last messages took to follow an answer, and the interval before any did.
        self._pauses: deque[float] = deque(maxlen=_PAUSES)
        self._seconds = _SOONEST

    def after_answer(self) -> float:
        """An answer was sent: the next message follows when all others have answered."""
        self._answered, self._seconds = self._clock(), _SOONEST
        return _within(_UNTIL_FIRST * min(self._pauses)) if self._pauses else _SOONEST

    def after_message(self) -> float:
        """A message arrived and is not answered yet: only a server that was restarted sends another one."""
        if self._answered is not None:
            self._pauses.append(self._clock() - self._answered)
            self._answered = None
        return _LATEST

    def after_nothing(self, took: float, *, asked: bool) -> float:
        """A poll that took some seconds found nothing."""
        if asked:
            return _LATEST
        if self._pauses:
            waited = 0.0 if self._answered is None else self._clock() - self._answered
            seconds = _within(max(min(self._pauses), waited) / _POLLS)
        else:
            seconds = self._seconds = min(_LATEST_AT_FIRST, _SLOWER * self._seconds)
        return max(seconds, min(_LATEST, took / _MOST_SHARE))


def _within(seconds: float) -> float:
    return min(_LATEST, max(_SOONEST, seconds))
