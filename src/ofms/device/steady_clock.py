"""Time that does not jump when the clock of a device is set."""

from __future__ import annotations

import time


class SteadyClock:
    """Seconds since 1970, from the clock at the start, or from `least` if that is later; then as time passes."""

    def __init__(self, least: float = 0.0) -> None:
        self._offset = max(time.time(), least) - time.monotonic()

    def now(self) -> float:
        return self._offset + time.monotonic()
