"""Handles a device's messages: welcome and grant in, request and report out."""

from __future__ import annotations

import logging
import threading

from ofms.compute.client import Backend
from ofms.core.errors import InvalidInput
from ofms.device.exchange_messages import read_grant, require_own_fleet, without_report
from ofms.device.held_models import HeldModels
from ofms.device.learning import late_outputs
from ofms.device.membership import read_membership
from ofms.device.memory import Outgoing
from ofms.device.recorder import Recorder
from ofms.plugins import Trust
from ofms.storage.envelope import Envelope, decode

_log = logging.getLogger("ofms.device")


class Messenger:
    """Handles one message at a time; `guard` is held only while the state changes, so that predictions continue."""

    def __init__(
        self, recorder: Recorder, guard: threading.RLock, *, budget: int, trust: Trust, backend: Backend = "auto"
    ) -> None:
        self.lock = threading.RLock()
        self._recorder, self._guard = recorder, guard
        self._state, self._budget, self._trust, self._backend = recorder.state, budget, trust, backend

    def receive(self, content: bytes | memoryview) -> None:
        """Process a welcome or a grant."""
        # A grant may be as large as all models held, which are copied out of it one by one.
        envelope = decode(content, shared=True)
        with self.lock:
            with self._guard:
                self._recorder.repeat_failed_snapshot()
            try:
                if envelope.kind == "welcome":
                    # What is kept of it must not keep the message in memory.
                    self._receive_welcome(decode(content), bytes(content))
                elif envelope.kind == "grant":
                    self._receive_grant(envelope)
                else:
                    raise InvalidInput("message", envelope.kind[:40], "a device accepts only a welcome or a grant")
            except (InvalidInput, OSError):
                raise
            except Exception as error:  # Nothing in a message is trusted, and a policy may compute anything from it.
                reason = f"a field is missing or malformed ({type(error).__name__}: {error})"
                raise InvalidInput("message", envelope.kind, reason) from None

    def collect(self, now: bool = False) -> Outgoing | None:
        """The message for the server; `now` ends the open exchange early."""
        with self.lock:
            state = self._state
            if state.held_models is not None and state.memory.open and (now or state.is_exchange_complete):
                self._report(state.held_models)
                self.settle()
            return state.memory.outgoing

    def content(self, outgoing: Outgoing) -> bytes:
        """The bytes of the message for the server, from the store; OSError if a grant has replaced it."""
        with self.lock:
            return self._recorder.content(outgoing)

    def settle(self) -> None:
        """Release memory: between two messages, a device needs less than while it handles one."""
        held_models = self._state.held_models
        if held_models is not None:
            held_models.membership.compute.settle()

    def _receive_welcome(self, envelope: Envelope, content: bytes) -> None:
        membership = read_membership(envelope, self._budget, self._trust, self._backend)
        exchange, state = int(envelope.values["exchange"]), self._state
        with self._guard:
            if state.held_models is None or state.held_models.membership.member != membership.member:
                state.join(membership, exchange)
                _log.info("joined deployment %s as client %d", membership.deployment, membership.client)
            elif state.held_models.membership.changed != membership.changed:
                state.change(membership, exchange)
            elif exchange != state.memory.requested_exchange:
                state.held_models.membership.require_same(membership)
                state.rejoin(HeldModels(membership, state.held_models.tensors), exchange)
            else:
                return
            state.memory.welcome = content
            self._recorder.snapshot()

    def _receive_grant(self, envelope: Envelope) -> None:
        memory, held_models = self._state.memory, self._state.held_models
        if held_models is None:
            raise InvalidInput("message", "grant", "a welcome must arrive first")
        require_own_fleet(envelope, held_models)
        exchange, opening = int(envelope.values["exchange"]), str(envelope.values["opening"])
        if exchange < memory.exchange or (exchange == memory.exchange and opening == memory.opening):
            return  # A duplicate.
        if exchange == memory.exchange and not memory.open:
            self._withdraw_report(opening)
            return
        granted = read_grant(envelope, held_models, memory, self._budget)
        # Files first, while predictions continue; then the whole state under the lock.
        for model, sent in granted.sent.items():
            self._recorder.store.keep_model(model, granted.versions[model], sent.content.data)
        with self._guard:
            self._state.apply(granted, held_models)
            self._recorder.snapshot()
        _log.debug("exchange %d: models %s are held", exchange, sorted(granted.versions))

    def _withdraw_report(self, opening: str) -> None:
        """Keep the pending request and drop its report."""
        memory = self._state.memory
        if memory.outgoing is not None:
            request = without_report(self._recorder.content(memory.outgoing), opening)
            with self._guard:
                memory.opening, memory.outgoing = opening, Outgoing(memory.outgoing.exchange, [request])
                self._recorder.snapshot()

    def _report(self, held_models: HeldModels) -> None:
        """End the exchange: fine-tune while predictions continue, then learn, report and request the next one."""
        with self._guard:
            late = self._state.late_task(held_models)
        outputs = late_outputs(held_models, late.unknown, late.samples)
        with self._guard:
            compared = self._state.remember(held_models, late, outputs)
            task = self._state.begin_report(held_models)
        deltas, left_out = held_models.updates(task.exchange, task.plan, task.tensors, task.samples)
        updated = sorted(deltas)
        with self._guard:
            self._state.finish_report(held_models, task, deltas, left_out, compared)
            # The report has them; the snapshot needs memory of that size again.
            del deltas
            self._recorder.snapshot()
        _log.debug("exchange %d: reported, with updates of models %s", task.exchange, updated)
