"""A device's state with its store: restored when opened, recorded on every event."""

from __future__ import annotations

from pathlib import Path

from ofms.compute.client import Arrays, Backend
from ofms.core.errors import InvalidInput
from ofms.device.held_models import HeldModels
from ofms.device.journal_records import JournalRecord, Predicted
from ofms.device.learning import learn, losses_of, observed_outputs, read_label
from ofms.device.membership import read_membership
from ofms.device.memory import Memory, Outgoing, Waiting
from ofms.device.soundness import require_memory, require_prediction
from ofms.device.state import DeviceState
from ofms.device.store import Store
from ofms.plugins import Trust
from ofms.storage.envelope import decode

_MOST_JOURNAL_BYTES = 64 * 2**20


class Recorder:
    """Journals each event before it takes effect, and writes a snapshot after each message."""

    def __init__(
        self, folder: Path, *, budget: int, trust: Trust, most: int, longest: float, backend: Backend = "auto"
    ) -> None:
        self.store = Store(folder)
        # Whether the last snapshot failed, so that the journal does not belong to the state in memory.
        self._unwritten = False
        self._journal_size = 0
        try:
            self.state = _restore(self.store, budget, trust, backend)
            _replay_all(self.state, self.store, most, longest)
        except BaseException:
            self.store.close()
            raise

    def append(self, record: JournalRecord) -> None:
        """Write a record to the journal."""
        self.repeat_failed_snapshot()
        self._journal_size = self.store.append(record)

    def flush(self) -> None:
        """Write all records to the journal now."""
        self.repeat_failed_snapshot()
        self.store.flush()

    def shorten_journal(self) -> None:
        """Replace a long journal by a snapshot."""
        if self._journal_size > _MOST_JOURNAL_BYTES:
            self.snapshot()
            self._journal_size = 0

    def snapshot(self) -> None:
        """Write the whole state and start a new journal."""
        self._unwritten = True
        memory = self.state.memory
        outgoing = memory.outgoing
        if outgoing is not None and outgoing.parts is not None:
            outgoing.file = self.store.keep_message(outgoing.parts)
        self.store.keep_snapshot(memory.write(), memory.versions, None if outgoing is None else outgoing.file)
        if outgoing is not None:
            outgoing.parts = None
        self._unwritten = False

    def content(self, outgoing: Outgoing) -> bytes:
        """The bytes of a message for the server."""
        return _content(self.store, outgoing)

    def repeat_failed_snapshot(self) -> None:
        """Retry a failed snapshot, for example after a full disk, before recording anything else."""
        if self._unwritten:
            self.snapshot()


def _restore(store: Store, budget: int, trust: Trust, backend: Backend) -> DeviceState:
    """The state of the last snapshot."""
    try:
        snapshot = store.snapshot()
        if snapshot is None:
            return DeviceState()
        if "welcome" not in snapshot.arrays:
            return DeviceState(Memory.read(snapshot, None))
        membership = read_membership(decode(snapshot.arrays["welcome"].tobytes()), budget, trust, backend)
        memory = Memory.read(snapshot, membership.join())
        require_memory(memory, membership)
        if memory.outgoing is not None:
            decode(_content(store, memory.outgoing))
        held_models = HeldModels(membership)
        for model, version in memory.versions.items():
            held_models.put_copy(model, held_models.read(model, store.model(model, version)))
        if memory.own and membership.policy.own_model is not None:
            _require_own(memory.own, held_models.tensors[membership.policy.own_model])
            held_models.change(membership.policy.own_model, memory.own)
        return DeviceState(memory, held_models)
    except Exception as error:  # A damaged snapshot may fail anywhere.
        if isinstance(error, InvalidInput) and error.field in ("budget", "architecture", "policy", "backend"):
            raise
        raise _damaged(store, error) from None


def _content(store: Store, outgoing: Outgoing) -> bytes:
    if outgoing.parts is not None:
        return b"".join(outgoing.parts)
    return store.message(str(outgoing.file))


def _require_own(own: Arrays, tensors: Arrays) -> None:
    for name, tensor in own.items():
        if name not in tensors or tensor.shape != tensors[name].shape or tensor.dtype != tensors[name].dtype:
            raise ValueError(f"own copy of {name}")


def _replay_all(state: DeviceState, store: Store, most: int, longest: float) -> None:
    """Repeat the journal since the snapshot."""
    try:
        for record in store.records():
            _replay(state, record, most, longest)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _damaged(store, error) from None


def _damaged(store: Store, error: Exception) -> InvalidInput:
    reason = f"{type(error).__name__}: {error}"
    return InvalidInput("store", store.folder, f"it cannot be read ({reason}); remove it to join again")


def _replay(state: DeviceState, record: JournalRecord, most: int, longest: float) -> None:
    """Repeat an event of the journal."""
    memory, held_models = state.memory, state.held_models
    if isinstance(record, Predicted):
        require_prediction(record, memory)
        waiting = Waiting(record.x, memory.exchange, record.since)
        state.add_waiting(record.id, waiting, most=most, longest=longest)
    elif record.id in memory.waiting and held_models is not None:
        outputs = observed_outputs(held_models, memory, memory.waiting[record.id])
        label = read_label(held_models.membership.task, outputs, record.y)
        losses = losses_of(held_models.membership, outputs, label)
        learn(held_models.membership, memory, record.id, label, outputs, losses)
