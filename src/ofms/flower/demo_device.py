"""The program of a device of the demo."""

from __future__ import annotations

import threading

from ofms.core.typing import AnyArray
from ofms.device.device import Device

# Between two samples: so that the fleet still runs when the last device joins.
_SAMPLE_SECONDS = 0.1


class Player(threading.Thread):
    """A device's program: predicts each sample of a stream, then learns from its label."""

    def __init__(self, device: Device, x: AnyArray, y: AnyArray, interval: int) -> None:
        super().__init__(name=f"program of {device.store.name}", daemon=True)
        self.device, self.x, self.y, self.interval = device, x, y.tolist(), interval
        self.answers: list[float | int] = []
        self.predicting: list[list[int]] = []
        self.holding: list[list[int]] = []
        self.most_held = 0
        # Its first exchange; later than 0 if it joins a running fleet.
        self.first = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.device.ready:
            if self.stopping.is_set():
                return
            self.device.wait_change(0.1)
        self.first = self.device.exchange
        for first in range(self.first * self.interval, len(self.x), self.interval):
            # Like simulated clients, process exactly the samples of an exchange before the next one.
            while not (self.device.ready and self.device.exchange >= first // self.interval):
                if self.stopping.is_set():
                    return
                self.device.wait_change(0.1)
            self.record_exchange()
            for step in range(first, min(first + self.interval, len(self.x))):
                answer = self.device.predict(self.x[step])
                self.answers.append(answer.value)
                self.device.feedback(answer.id, self.y[step])
                self.stopping.wait(_SAMPLE_SECONDS)

    def record_exchange(self) -> None:
        """Record which models are held and predict in this exchange."""
        self.predicting.append(self.device.predicting)
        self.holding.append(self.device.holding)
        self.most_held = max(self.most_held, self.device.held_bytes)

    @property
    def right(self) -> list[bool]:
        """Whether each prediction was right."""
        labels = self.y[self.first * self.interval :]
        return [answer == label for answer, label in zip(list(self.answers), labels, strict=False)]
