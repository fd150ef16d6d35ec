"""A device's state with its store: restored when opened, recorded on every event."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from ofms.compute.client import Backend
from ofms.core.errors import InvalidInput
from ofms.device.held_models import HeldModels
from ofms.device.journal_records import JournalRecord, Predicted
from ofms.device.learning import learn, losses_of, observed_outputs
from ofms.device.membership import read_membership
from ofms.device.memory import Memory, Waiting
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
            for record in self.store.records():
                _replay(self.state, record, most, longest)
        except BaseException:
            self.store.close()
            raise

    def append(self, record: JournalRecord) -> None:
        """Write a record to the journal."""
        self.repeat_failed_snapshot()
        self._journal_size = self.store.append(record)

    def shorten_journal(self) -> None:
        """Replace a long journal by a snapshot."""
        if self._journal_size > _MOST_JOURNAL_BYTES:
            self.snapshot()
            self._journal_size = 0

    def snapshot(self) -> None:
        """Write the whole state and start a new journal."""
        self._unwritten = True
        self.store.keep_snapshot(self.state.memory.write(), self.state.memory.versions)
        self._unwritten = False

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
        held_models = HeldModels(membership)
        for model, version in memory.versions.items():
            held_models.put(model, held_models.read(model, store.model(model, version)))
        if memory.own and membership.policy.own_model is not None:
            held_models.change(membership.policy.own_model, memory.own)
        return DeviceState(memory, held_models)
    except (InvalidInput, KeyError, ValueError, OSError, SafetensorError) as error:
        if isinstance(error, InvalidInput) and error.field in ("budget", "architecture", "policy", "backend"):
            raise
        raise InvalidInput("store", store.folder, f"it cannot be read ({error}); remove it to join again") from None


def _replay(state: DeviceState, record: JournalRecord, most: int, longest: float) -> None:
    """Repeat an event of the journal."""
    memory, held_models = state.memory, state.held_models
    if isinstance(record, Predicted):
        waiting = Waiting(record.x, memory.exchange, record.since)
        state.add_waiting(record.id, waiting, most=most, longest=longest)
    elif record.id in memory.waiting and held_models is not None:
        outputs = observed_outputs(held_models, memory, memory.waiting[record.id])
        losses = losses_of(held_models.membership, outputs, record.y)
        learn(held_models.membership, memory, record.id, record.y, outputs, losses)
