"""A device's folder: the last snapshot, the journal since, the models held; one process writes it."""

from __future__ import annotations

import threading
from pathlib import Path

import safetensors.torch

from ofms.compute.local import Tensors
from ofms.core.errors import InvalidInput
from ofms.device.journal import FLUSH_SECONDS, Journal, read_records
from ofms.device.journal_records import JournalRecord
from ofms.storage.envelope import Envelope, decode, encode
from ofms.storage.files import require_writable, write_whole
from ofms.storage.locks import FolderLock

_SNAPSHOT, _MODELS = "snapshot.safetensors", "models"


class Store:
    """What a device wrote, and where it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        require_writable(folder / _MODELS)
        self._lock = FolderLock(folder)
        self._number = 0
        self._journal: Journal | None = None
        self._failure: OSError | None = None
        self._waiting, self._closed = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write, name=f"journal of {folder}", daemon=True)
        self._writer.start()

    def close(self) -> None:
        self._closed.set()
        self._waiting.set()
        self._writer.join()
        self._close_journal()
        self._lock.close()

    def snapshot(self) -> Envelope | None:
        """The last one, or None in a new store."""
        path = self.folder / _SNAPSHOT
        if not path.exists():
            return None
        letter = decode(path.read_bytes())
        self._number = int(letter.values["number"])
        return letter

    def keep_snapshot(self, letter: Envelope, versions: dict[int, int]) -> None:
        """Write everything, begin a new journal, and remove what nobody needs any more."""
        self._number += 1
        content = encode(Envelope(letter.kind, {**letter.values, "number": self._number}, letter.arrays))
        write_whole(self.folder / _SNAPSHOT, content)
        self._close_journal()
        self._journal = Journal(self._journal_path)
        for path in self.folder.glob("journal-*"):
            if path != self._journal.path:
                path.unlink()
        wanted = {self._model_path(*each).name for each in versions.items()}
        for path in (self.folder / _MODELS).glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink()

    def entries(self) -> list[JournalRecord]:
        """What the journal has since the snapshot; from then on it is written to."""
        self._journal = Journal(self._journal_path)
        return read_records(self._journal_path)

    def append(self, entry: JournalRecord) -> int:
        """Take an entry for the journal, which is written shortly after; the journal's size so far."""
        journal = self._journal
        if journal is None:
            raise InvalidInput("store", self.folder, "it was closed; open the device again")
        if self._failure is not None:
            # What waits is still there: it is written now, or this one is not taken.
            journal.flush()
            self._failure = None
        if journal.append(entry):
            self._waiting.set()
        return journal.size

    def keep_model(self, model: int, version: int, tensors: Tensors) -> None:
        write_whole(self._model_path(model, version), safetensors.torch.save(tensors))

    def model(self, model: int, version: int) -> Tensors:
        return safetensors.torch.load(self._model_path(model, version).read_bytes())

    def _write(self) -> None:
        """Write the journal shortly after its first record that waits, until the store is closed."""
        while self._waiting.wait():
            # Cleared before the look at `_closed`, which is set first: cleared after it, a close in between is missed.
            self._waiting.clear()
            if self._closed.wait(FLUSH_SECONDS):
                return
            journal = self._journal
            try:
                if journal is not None:
                    journal.flush()
            except OSError as error:
                self._failure = error

    def _close_journal(self) -> None:
        """Its descriptor may be another file's the next moment: nothing is written to it any more."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    @property
    def _journal_path(self) -> Path:
        return self.folder / f"journal-{self._number}"

    def _model_path(self, model: int, version: int) -> Path:
        return self.folder / _MODELS / f"{model}-{version}.safetensors"
