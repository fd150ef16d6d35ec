"""When clients exchange messages with the server, and which samples a client fine-tunes on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats


@dataclass(frozen=True)
class Schedule:
    """T rounds of one sample each, with an exchange every n rounds (before th:5).

    A fleet that runs until it is stopped has no horizon: its `rounds` are None. If the interval changed, exchanges have
    it from `since` on, whose first round is `start`; those before are past.

    Examples
    --------
    >>> schedule = Schedule(rounds=7, interval=3)
    >>> [schedule.span(exchange) for exchange in range(schedule.exchanges)]
    [(0, 3), (3, 6), (6, 7)]
    >>> Schedule(rounds=None, interval=3).span(1000)
    (3000, 3003)
    >>> changed = schedule.with_interval(1, since=1)
    >>> changed.span(1), changed.span(2), changed.exchanges
    ((3, 4), (4, 5), 5)
    """

    rounds: int | None
    interval: int = 1
    since: int = 0
    start: int = 0

    @property
    def exchanges(self) -> int:
        """The number of exchanges; the last one may span fewer rounds. Rejected without a horizon."""
        return self.since + -(-(self.require_rounds() - self.start) // self.interval)

    def includes(self, exchange: int) -> bool:
        """Whether an exchange begins before the horizon; without one, every exchange does."""
        return self.rounds is None or self._first(exchange) < self.rounds

    def span(self, exchange: int) -> tuple[int, int]:
        """The first round of an exchange, and the first round after it."""
        first = self._first(exchange)
        stop = first + self.interval
        return first, stop if self.rounds is None else min(stop, self.rounds)

    def with_interval(self, interval: int, since: int) -> Schedule:
        """The schedule with another interval, from an exchange on."""
        return Schedule(self.rounds, interval, since, self._first(since))

    def _first(self, exchange: int) -> int:
        return self.start + (exchange - self.since) * self.interval

    def require_rounds(self) -> int:
        """T; rejected without a horizon."""
        if self.rounds is None:
            raise InvalidInput("rounds", None, "the horizon T is needed here; give it")
        return self.rounds


@dataclass(frozen=True)
class Window:
    """Consecutive samples from round `first`, and the weight of each in the fine-tuning loss."""

    first: int
    weights: Floats

    @property
    def stop(self) -> int:
        return self.first + self.weights.size


def tuning_window(span: tuple[int, int], length: int, warm_up: int) -> Window | None:
    """The samples that fine-tuning uses in an exchange, or None if there are none yet.

    The fine-tuning loss of a round is the mean loss over the last `length` samples, up to and including its own; an
    exchange of several rounds sums it over its rounds. Thus `length` 1 is (2r2), and (52ap) with an interval.
    Rounds before `warm_up` do not count.

    Examples
    --------
    >>> tuning_window((4, 5), length=1, warm_up=0)
    Window(first=4, weights=array([1.]))
    >>> tuning_window((4, 6), length=2, warm_up=0)
    Window(first=3, weights=array([0.5, 1. , 0.5]))
    >>> tuning_window((4, 6), length=2, warm_up=6) is None
    True
    """
    begin, stop = max(span[0], warm_up), span[1]
    if begin >= stop:
        return None
    first = max(0, begin - length + 1)
    weights = np.zeros(stop - first)
    for current in range(begin, stop):
        start = max(0, current - length + 1)
        weights[start - first : current - first + 1] += 1.0 / (current - start + 1)
    return Window(first, weights)


def past_window(before: int, length: int) -> Window | None:
    """The last `length` samples before round `before`, equally weighted, or None if there are none.

    >>> past_window(5, 2)
    Window(first=3, weights=array([0.5, 0.5]))
    """
    first = max(0, before - length)
    return Window(first, np.full(before - first, 1.0 / (before - first))) if before > first else None
