"""A device: it predicts at once with what it holds, learns when labels come, and keeps itself on disk.

The store is a folder that one process writes: a snapshot of everything as it was after the last letter, and a journal
of the predictions and labels since, which is a few milliseconds behind; together they are the device. Letters from the
server (welcome, grant) come through the store's inbox and go through its outbox, where something else carries them; or
a program of one's own passes them to `receive` and takes them from `collect`.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from safetensors import SafetensorError

from ofms.core.errors import InvalidInput, NotReady
from ofms.core.messages import Plan
from ofms.core.typing import AnyArray, Floats
from ofms.device.exchange_messages import read_grant, write_request
from ofms.device.held_models import HeldModels
from ofms.device.journal_records import JournalRecord, Labelled, Predicted
from ofms.device.learning import answer, keep_outputs, learn, losses_of, past_samples, read_label
from ofms.device.mail_thread import MailThread
from ofms.device.mailbox import Mailbox
from ofms.device.membership import Membership, read_membership
from ofms.device.memory import Memory, Waiting
from ofms.device.store import Store
from ofms.storage.envelope import Envelope, decode, message_arrays

_MOST_JOURNAL_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Prediction:
    """What a device answers: a class number or a value, and the id under which its label may come."""

    id: int
    value: float | int


class Device:
    """One client of a federation, opened on its store.

    Parameters
    ----------
    store
        Its folder; made where it is missing.
    budget
        Memory for models, in bytes.
    most_waiting, longest_wait
        How many inputs may wait for their labels, and for how many seconds; what falls out is counted in `dropped`.
    mail
        Whether a thread takes letters from the store's inbox and puts them into its outbox; without it, they are
        passed to `receive` and taken from `collect`.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        budget: int,
        most_waiting: int = 1000,
        longest_wait: float = 86_400.0,
        mail: bool = True,
    ) -> None:
        if budget < 1:
            raise InvalidInput("budget", budget, "give the bytes that models may take")
        self.store, self.budget = Path(store), budget
        self.most_waiting, self.longest_wait = most_waiting, longest_wait
        # One letter at a time; what `_guard` keeps is touched by predictions too, and held only briefly.
        self._desk = threading.RLock()
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._held_models: HeldModels | None = None
        self._memory = Memory()
        self._predicting: tuple[int, list[int]] | None = None
        # What is in memory and could not be written; nothing goes on before it is.
        self._unwritten = False
        self._journal_size = 0
        self._mailbox = Mailbox(self.store)
        self._store = Store(self.store)
        try:
            self._reopen()
        except BaseException:
            self._store.close()
            raise
        self._mail_thread = MailThread(self, self._mailbox) if mail else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store; everything is in it already."""
        if self._mail_thread is not None:
            self._mail_thread.stop()
        with self._desk, self._guard:
            self._store.close()

    @property
    def ready(self) -> bool:
        """Whether there has been a grant: from then on it predicts, with or without a server."""
        return bool(self._memory.plans)

    @property
    def held_bytes(self) -> int:
        """What the models take that it holds."""
        with self._guard:
            return 0 if self._held_models is None else self._held_models.bytes_of(self._held_models)

    @property
    def in_transit(self) -> int:
        """Bytes of letters that came and are not taken yet."""
        return self._mailbox.in_transit()

    @property
    def exchange(self) -> int:
        """The number of the exchange whose models it holds; -1 before the first."""
        return self._memory.exchange

    @property
    def holding(self) -> list[int]:
        """The models that it holds."""
        return [] if self._held_models is None else sorted(self._held_models)

    @property
    def predicting(self) -> list[int]:
        """The models that predict."""
        plan = self._memory.plans.get(self._memory.exchange)
        return [] if plan is None else np.flatnonzero(plan.prediction_weights[0]).tolist()

    @property
    def dropped(self) -> int:
        """How many inputs fell out before their label came."""
        return self._memory.dropped

    @property
    def predictions(self) -> int:
        """How many it made so far; the next one has this id."""
        return self._memory.next_id

    @property
    def waiting(self) -> list[int]:
        """The ids of predictions that wait for their labels."""
        with self._guard:
            return list(self._memory.waiting)

    @property
    def wants_exchange(self) -> bool:
        """Whether as many labels came as the exchange has samples, so that there is something to report."""
        held_models, memory = self._held_models, self._memory
        return (
            held_models is not None
            and memory.open
            and memory.labelled >= held_models.membership.samples_in(memory.exchange)
        )

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the first grant; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ready, timeout)

    def wait_change(self, timeout: float) -> None:
        """Wait for a letter, or for the label that completes an exchange."""
        with self._changed:
            self._changed.wait(timeout)

    def predict(self, x: AnyArray) -> Prediction:
        """Answer at once with the models at hand."""
        # A copy: the caller may fill its array anew before the label comes.
        x = np.array(x, dtype=np.float32, ndmin=1)
        # The sum tells it at once, but for sums that overflow.
        if not math.isfinite(x.sum()) and not np.isfinite(x).all():
            raise InvalidInput("input", "not finite", "give finite numbers; nothing can be learnt from others")
        with self._guard:
            held_models, memory = self._require_ready(), self._memory
            plan = memory.plans[memory.exchange]
            if self._predicting is None or self._predicting[0] != memory.exchange:
                self._predicting = (memory.exchange, np.flatnonzero(plan.prediction_weights[0]).tolist())
            if memory.shape is not None and x.shape != memory.shape:
                # A convolution may take it, but samples of several shapes make no batch to learn from.
                raise InvalidInput(
                    "input", list(x.shape), f"earlier ones were {list(memory.shape)}; give the same shape"
                )
            past = past_samples(held_models.membership, memory)
            outputs = {model: held_models.outputs(model, x[None], past)[0] for model in self._predicting[1]}
            value = answer(outputs, plan.prediction_weights[0], held_models.membership.task)
            number, since = memory.next_id, time.time()
            self._append(Predicted(number, since, x))
            memory.next_id, memory.shape = number + 1, x.shape
            self._wait_for(number, Waiting(x, memory.exchange, since))
            self._shorten_journal()
            return Prediction(number, value)

    def feedback(self, id: int, y: float | int) -> bool:
        """Learn from a label; False where its input is not waiting (any more)."""
        with self._guard:
            held_models = self._require_ready()
            waiting = self._memory.waiting.get(id)
            if waiting is None:
                return False
            # Refused before it is written down: what is in the journal must be learnt from when it is read again.
            label = read_label(held_models, waiting, y)
            losses = losses_of(held_models, self._memory, waiting, label)
            self._append(Labelled(int(id), label))
            learn(held_models.membership, self._memory, int(id), label, losses)
            self._shorten_journal()
            if self.wants_exchange:
                self._changed.notify_all()
            return True

    def receive(self, content: bytes) -> None:
        """Take a letter from the server: the welcome, then a grant for each exchange."""
        letter = decode(content)
        with self._desk:
            with self._guard:
                self._write_what_is_unwritten()
            try:
                if letter.kind == "welcome":
                    self._welcome(letter, content)
                elif letter.kind == "grant":
                    self._grant(letter)
                else:
                    raise InvalidInput("letter", letter.kind, "a device takes a welcome or a grant")
            except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
                if isinstance(error, InvalidInput):
                    raise
                reason = f"it does not say what it should ({type(error).__name__}: {error})"
                raise InvalidInput("letter", letter.kind, reason) from None
            with self._guard:
                self._changed.notify_all()

    def collect(self, *, now: bool = False) -> bytes | None:
        """The letter for the server: the first request, or the report of an exchange with the next request.

        None where there is none yet; `now` ends an exchange before all of its labels came.
        """
        with self._desk:
            held_models = self._held_models
            if held_models is not None and self._memory.open and (now or self.wants_exchange):
                self._report(held_models)
            return self._memory.letter

    def letter(self) -> tuple[int, bytes] | None:
        """What waits for the server, with the exchange that it asks for."""
        with self._desk:
            content = self.collect()
            return None if content is None else (self._memory.letter_exchange, content)

    # What letters do.

    def _welcome(self, letter: Envelope, content: bytes) -> None:
        membership, exchange = read_membership(letter, self.budget), int(letter.values["exchange"])
        held_models, memory = self._held_models, self._memory
        if held_models is None or held_models.membership.member != membership.member:
            with self._guard:
                self._join(membership, exchange)
                self._memory.welcome = content
                self._snapshot()
        elif exchange != memory.letter_exchange:
            with self._guard:
                self._rejoin(HeldModels(membership, held_models.tensors), exchange)
                memory.welcome = content
                self._snapshot()

    def _join(self, membership: Membership, exchange: int) -> None:
        """Begin anew in a fleet."""
        before = self._memory
        self._held_models, self._predicting = HeldModels(membership), None
        self._memory = Memory(
            state=membership.join(),
            losses=np.zeros(len(membership.fleet.catalogue)),
            next_id=before.next_id,
            dropped=before.dropped + len(before.waiting),
        )
        write_request(self._held_models, self._memory, exchange)

    def _rejoin(self, held_models: HeldModels, exchange: int) -> None:
        """Ask for an exchange after having missed some; what was learnt stays."""
        self._held_models, memory, membership = held_models, self._memory, held_models.membership
        if memory.open and memory.labelled:
            plan = memory.plans[memory.exchange]
            memory.state, _ = membership.session.learn(memory.state, plan, self._observed(membership, plan))
        memory.open = False
        went_back = memory.exchange >= exchange
        if went_back:
            # The number of what is held must come before the one that the server opens.
            memory.dropped += len(memory.waiting)
            memory.waiting.clear()
            memory.plans = {exchange - 1: memory.plans[memory.exchange]}
            memory.exchange = exchange - 1
            self._predicting = None
        write_request(held_models, memory, exchange, anew=went_back)

    def _grant(self, letter: Envelope) -> None:
        held_models, memory = self._held_models, self._memory
        if held_models is None:
            raise InvalidInput("letter", "grant", "a welcome must come first")
        granted = read_grant(letter, held_models, memory, self.budget)
        if granted is None:
            return  # It came before.
        grants, versions, sent = granted.grants, granted.versions, granted.sent
        # Files first, while predictions go on; then everything at once.
        for model, tensors in sent.items():
            self._store.keep_model(model, versions[model], tensors)
        with self._guard:
            keep_outputs(
                held_models, memory, [model for model in held_models if model not in versions or model in sent]
            )
            memory.state, plan = held_models.membership.session.plan(memory.state, grants)
            for model in set(held_models) - versions.keys():
                held_models.remove(model)
            for model, tensors in sent.items():
                held_models.put(model, tensors)
            memory.versions = dict(versions)
            memory.exchange, memory.open, memory.letter = grants.exchange, True, None
            memory.plans[grants.exchange] = plan
            memory.losses, memory.labelled = np.zeros(len(held_models.membership.fleet.catalogue)), 0
            memory.forget_plans()
            self._snapshot()

    def _report(self, held_models: HeldModels) -> None:
        """End the exchange: fine-tune while predictions go on, then learn, report and ask for the next one."""
        memory, membership = self._memory, held_models.membership
        with self._guard:
            plan, exchange = memory.plans[memory.exchange], memory.exchange
            _, reports = membership.session.learn(memory.state, plan, self._observed(membership, plan))
            held, samples = dict(held_models.tensors), list(memory.samples)
        models = np.flatnonzero(reports.updated[0]).tolist()
        deltas = held_models.updates(exchange, {model: held[model] for model in models}, samples)
        with self._guard:
            memory.state, reports = membership.session.learn(memory.state, plan, self._observed(membership, plan))
            memory.open = False
            updated = np.zeros_like(reports.updated)
            updated[0, list(deltas)] = True
            reports = replace(reports, updated=updated)
            weights = {model: float(plan.update_weight[0, model]) for model in deltas}
            report = message_arrays(reports, "report")
            write_request(held_models, memory, exchange + 1, report=report, deltas=deltas, weights=weights)
            self._snapshot()

    def _observed(self, membership: Membership, plan: Plan) -> Floats:
        """[1, K] what the open exchange's labels came to for each model that is evaluated."""
        return np.where(membership.policy.observed(plan), self._memory.losses[None], np.nan)

    # What waits for labels, and the store.

    def _wait_for(self, number: int, waiting: Waiting) -> None:
        memory = self._memory
        memory.waiting[number] = waiting
        while memory.waiting:
            oldest = next(iter(memory.waiting.values()))
            if len(memory.waiting) <= self.most_waiting and waiting.since - oldest.since <= self.longest_wait:
                break
            memory.waiting.popitem(last=False)
            memory.dropped += 1

    def _require_ready(self) -> HeldModels:
        if self._held_models is None or not self.ready:
            raise NotReady(f"{self.store}: no grant has come yet; wait_ready() waits for the first one")
        return self._held_models

    def _append(self, entry: JournalRecord) -> None:
        if self._unwritten:
            self._write_what_is_unwritten()
        self._journal_size = self._store.append(entry)

    def _shorten_journal(self) -> None:
        if self._journal_size > _MOST_JOURNAL_BYTES:
            self._snapshot()
            self._journal_size = 0

    def _snapshot(self) -> None:
        self._unwritten = True
        self._store.keep_snapshot(self._memory.write(), self._memory.versions)
        self._unwritten = False

    def _write_what_is_unwritten(self) -> None:
        """After a snapshot that failed, as on a full disk: the journal on disk is not of what is in memory."""
        if self._unwritten:
            self._snapshot()

    def _reopen(self) -> None:
        """Become what the store says."""
        try:
            snapshot = self._store.snapshot()
            if snapshot is not None:
                membership = None
                if "welcome" in snapshot.arrays:
                    membership = read_membership(decode(snapshot.arrays["welcome"].tobytes()), self.budget)
                self._memory = Memory.read(snapshot, None if membership is None else membership.join())
                if membership is not None:
                    versions = self._memory.versions.items()
                    self._held_models = HeldModels(
                        membership, {model: self._store.model(model, version) for model, version in versions}
                    )
        except (InvalidInput, KeyError, ValueError, OSError, SafetensorError) as error:
            if isinstance(error, InvalidInput) and error.field == "budget":
                raise
            raise InvalidInput("store", self.store, f"it is damaged ({error}); remove it to join anew") from None
        for entry in self._store.entries():
            self._replay(entry)

    def _replay(self, entry: JournalRecord) -> None:
        memory = self._memory
        if isinstance(entry, Predicted):
            memory.next_id, memory.shape = entry.id + 1, entry.x.shape
            self._wait_for(entry.id, Waiting(entry.x, memory.exchange, entry.since))
        elif entry.id in memory.waiting:
            held_models = self._require_ready()
            learn(
                held_models.membership,
                memory,
                entry.id,
                entry.y,
                losses_of(held_models, memory, memory.waiting[entry.id], entry.y),
            )
