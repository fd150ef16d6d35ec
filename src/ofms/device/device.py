"""A device: predicts immediately with the models it holds, learns when labels arrive, and persists its state.

Its store is a folder that one process writes: a snapshot taken after the last message, and a journal of later
predictions and labels, written within a tenth of a second. Messages of the server (welcome, grant) arrive in the
store's inbox and answers leave through its outbox; a carrier such as `ofms deploy device` exchanges them with the
server. Alternatively, the device connects to the server itself, or the program passes messages to `receive` and takes
answers from `collect`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

import numpy as np

from ofms.compute.client import Backend, choose_backend
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.data.arrays import real_array
from ofms.device.connection import make_connection
from ofms.device.errors import NotReady
from ofms.device.held_models import HeldModels
from ofms.device.journal_records import Labelled, Predicted
from ofms.device.learning import Label, learn, losses_of, observed_outputs, read_label
from ofms.device.mail_thread import MailThread
from ofms.device.mailbox import Mailbox
from ofms.device.memory import Outgoing, Waiting
from ofms.device.messenger import Messenger
from ofms.device.recorder import Recorder
from ofms.device.state import Reveals
from ofms.device.steady_clock import SteadyClock
from ofms.plugins import trust_of


@dataclass(frozen=True)
class Prediction:
    """A class number or a value, and the id under which to give its label."""

    id: int
    value: float | int


class Device:
    """One client of a fleet, opened on its store.

    Parameters
    ----------
    store
        Its folder; created if it is missing.
    budget
        Memory for models, in bytes.
    most_waiting, longest_wait
        How many inputs may wait for their labels, and for how many seconds; `dropped` counts the others.
    mail
        Whether a thread moves messages between the device and the store's inbox and outbox. Without it, the program
        passes them to `receive` and takes them from `collect`.
    connect
        The folder of `ofms deploy keys`: threads then exchange messages with the server themselves (extra: flower).
    trust
        Packages from which the server may name architectures and policies besides the built-in ones.
    reveals
        What reports say about predictions, besides what the policy needs: `nothing`; the number of labels and their
        summed `score` (right classes, or squared errors); or also the `use` of each model, its weight in predictions.
        By default the score, and the use if the policy's updates reveal it anyway.
    backend
        What computes: `torch`, `onnx` (ONNX Runtime, which runs the graphs that the server exported), or `auto`:
        PyTorch where it is installed.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        budget: int,
        most_waiting: int = 1000,
        longest_wait: float = 86_400.0,
        mail: bool = True,
        connect: str | Path | None = None,
        trust: Sequence[str] = (),
        reveals: Reveals | None = None,
        backend: Backend = "auto",
    ) -> None:
        if budget < 1:
            raise InvalidInput("budget", budget, "give the bytes that models may take")
        if reveals is not None and reveals not in get_args(Reveals):
            raise InvalidInput("reveals", reveals, f"use one of {', '.join(get_args(Reveals))}")
        choose_backend(backend)
        connection = None if connect is None else make_connection(Path(connect), budget)
        self.store, self.budget = Path(store), budget
        self.most_waiting, self.longest_wait = most_waiting, longest_wait
        # Held while the state changes or a prediction reads it.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._mailbox = Mailbox(self.store)
        trusted = trust_of(trust)
        self._recorder = Recorder(
            self.store, budget=budget, trust=trusted, most=most_waiting, longest=longest_wait, backend=backend
        )
        self._state = self._recorder.state
        self._state.reveals = reveals
        # The inputs that wait for labels are not dropped because a clock was set.
        self._clock = SteadyClock(max((each.since for each in self._state.memory.waiting.values()), default=0.0))
        self._messenger = Messenger(self._recorder, self._guard, budget=budget, trust=trusted, backend=backend)
        self._carrier = connection or (MailThread(self, self._mailbox) if mail else None)
        if connection is not None:
            connection.start(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the store, in which all state is already written."""
        if self._carrier is not None:
            self._carrier.stop()
        with self._messenger.lock, self._guard:
            self._recorder.store.close()

    @property
    def ready(self) -> bool:
        """Whether a grant has arrived: from then on the device predicts, with or without a server."""
        return self._state.ready

    @property
    def held_bytes(self) -> int:
        """Bytes of the models held."""
        with self._guard:
            held_models = self._state.held_models
            return 0 if held_models is None else held_models.bytes_of(held_models)

    @property
    def in_transit(self) -> int:
        """Bytes of messages in the inbox."""
        return self._mailbox.in_transit()

    @property
    def exchange(self) -> int:
        """The exchange whose models are held; -1 before the first."""
        return self._state.memory.exchange

    @property
    def holding(self) -> list[int]:
        """The models held."""
        held_models = self._state.held_models
        return [] if held_models is None else sorted(held_models)

    @property
    def predicting(self) -> list[int]:
        """The models that predict."""
        memory = self._state.memory
        plan = memory.plans.get(memory.exchange)
        return [] if plan is None else np.flatnonzero(plan.prediction_weights[0]).tolist()

    @property
    def dropped(self) -> int:
        """How many inputs were dropped before their label arrived."""
        return self._state.memory.dropped

    @property
    def predictions(self) -> int:
        """The number of predictions so far, which is the id of the next one."""
        return self._state.memory.next_id

    @property
    def waiting(self) -> list[int]:
        """The ids of predictions whose labels are missing."""
        with self._guard:
            return list(self._state.memory.waiting)

    @property
    def wants_exchange(self) -> bool:
        """Whether all labels of the open exchange have arrived, so that it can be reported."""
        return self._state.is_exchange_complete

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the first grant; return whether it arrived."""
        return self.wait_for(lambda: self.ready, timeout)

    def wait_change(self, timeout: float) -> None:
        """Wait for a message, or for the label that completes an exchange."""
        with self._changed:
            self._changed.wait(timeout)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds; it is evaluated after each change and after `notify`."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def notify(self) -> None:
        """Wake all that wait."""
        with self._changed:
            self._changed.notify_all()

    def predict(self, x: AnyArray) -> Prediction:
        """Predict immediately with the models held."""
        # A copy: the caller may reuse its array before the label arrives.
        x = np.array(real_array("input", x), dtype=np.float32, ndmin=1)
        # The sum is a cheap first test; a finite input whose sum overflows needs the second one.
        if not math.isfinite(x.sum()) and not np.isfinite(x).all():
            raise InvalidInput("input", "not finite", "give finite numbers")
        with self._guard:
            value, outputs = self._state.predict(self._require_ready(), x)
            memory, since = self._state.memory, self._clock.now()
            number = memory.next_id
            self._recorder.append(Predicted(number, since, x))
            waiting = Waiting(x, memory.exchange, since, outputs)
            self._state.add_waiting(number, waiting, most=self.most_waiting, longest=self.longest_wait)
            self._recorder.shorten_journal()
            return Prediction(number, value)

    def feedback(self, id: int, y: Label) -> bool:
        """Learn from a label; False if no input waits for it (any more)."""
        with self._guard:
            held_models, memory = self._require_ready(), self._state.memory
            waiting = memory.waiting.get(id)
            if waiting is None:
                return False
            # Validated before it is written: replaying a journalled label must not fail.
            outputs = observed_outputs(held_models, memory, waiting)
            label = read_label(held_models.membership.task, outputs, y)
            losses = losses_of(held_models.membership, outputs, label)
            self._recorder.append(Labelled(int(id), label))
            learn(held_models.membership, memory, int(id), label, outputs, losses)
            self._recorder.shorten_journal()
            if self.wants_exchange:
                self._changed.notify_all()
            return True

    def flush(self) -> None:
        """Write predictions and labels to the store now, instead of within a tenth of a second.

        No kill of the program loses what was given before this returned; OSError if it cannot be written.
        """
        with self._guard:
            self._recorder.flush()

    def receive(self, content: bytes | memoryview) -> None:
        """Process a message of the server: the welcome, then a grant for each exchange."""
        self._messenger.receive(content)
        self.settle()
        self.notify()

    def settle(self) -> None:
        """Give memory that a message needed back to the system."""
        self._messenger.settle()

    def collect(self, *, now: bool = False) -> bytes | None:
        """The message for the server: the first request, or the report of an exchange with the next request.

        None if there is none yet; `now` ends an exchange before all of its labels have arrived.
        """
        with self._messenger.lock:
            found = self._messenger.collect(now)
            return None if found is None else self._messenger.content(found)

    def outgoing(self) -> Outgoing | None:
        """The message to be sent to the server, for its carrier; `content` reads it."""
        return self._messenger.collect()

    def content(self, outgoing: Outgoing) -> bytes:
        """The bytes of a message, from the store: between two messages they take no memory."""
        return self._messenger.content(outgoing)

    def _require_ready(self) -> HeldModels:
        held_models = self._state.held_models
        if held_models is None or not self.ready:
            raise NotReady(f"{self.store}: no grant has arrived yet; wait_ready() waits for the first one")
        return held_models
