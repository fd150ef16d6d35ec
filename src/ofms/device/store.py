"""A device's folder: the last snapshot, the journal since then, the held models, and the message for the server.

One process writes it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from ofms.core.errors import InvalidInput
from ofms.device.journal import FLUSH_SECONDS, Journal, read_records
from ofms.device.journal_records import JournalRecord
from ofms.storage.checksums import checksum, ending, require_checksum, without_checksum
from ofms.storage.envelope import Envelope, decode, encode
from ofms.storage.files import remove_leftovers, replacing, write_all, write_whole
from ofms.storage.locks import FolderLock
from ofms.storage.private import private_mode, require_private

_SNAPSHOT, _MODELS = "snapshot.safetensors", "models"


class Store:
    """The files of a device; a thread flushes the journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        require_private(folder)
        require_private(folder / _MODELS, within=folder)
        self._mode = private_mode(folder)
        self._lock = FolderLock(folder, mode=self._mode)
        for each in (folder, folder / _MODELS):
            remove_leftovers(each)
        self._number = 0
        # Of the files of models and messages, by name.
        self._checksums: dict[str, str] = {}
        self._journal: Journal | None = None
        self._failure: OSError | None = None
        self._waiting, self._closed = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write, name=f"journal of {folder}", daemon=True)
        self._writer.start()

    def close(self) -> None:
        self._closed.set()
        self._waiting.set()
        self._writer.join()
        try:
            self._close_journal()
        finally:
            # Also if the last records could not be written: another process may open the store then.
            self._lock.close()

    def snapshot(self) -> Envelope | None:
        """The last snapshot, or None in a new store."""
        path = self.folder / _SNAPSHOT
        if not path.exists():
            return None
        snapshot = decode(without_checksum(path.read_bytes()))
        self._number = int(snapshot.values["number"])
        self._checksums = dict(snapshot.values.get("checksums", {}))
        return snapshot

    def keep_snapshot(self, snapshot: Envelope, versions: dict[int, int], message: str | None = None) -> None:
        """Write a snapshot, start a new journal, and remove files that are no longer needed."""
        self._number += 1
        wanted = {self._model_path(*each).name for each in versions.items()} | {str(message)}
        self._checksums = {name: each for name, each in self._checksums.items() if name in wanted}
        values = {**snapshot.values, "number": self._number, "checksums": self._checksums}
        content = encode(Envelope(snapshot.kind, values, snapshot.arrays))
        # One after the other: together they would take its memory twice.
        with replacing(self.folder / _SNAPSHOT, mode=self._mode) as descriptor:
            write_all(descriptor, content)
            write_all(descriptor, ending(content))
        self._close_journal()
        self._journal = Journal(self._journal_path, self._mode)
        for path in self.folder.glob("journal-*"):
            if path != self._journal.path:
                path.unlink()
        for path in (*(self.folder / _MODELS).glob("*.safetensors"), *self.folder.glob("message-*")):
            if path.name not in wanted:
                path.unlink()

    def records(self) -> list[JournalRecord]:
        """The journal since the snapshot; later records are appended to it."""
        self._journal = Journal(self._journal_path, self._mode)
        return read_records(self._journal_path)

    def append(self, record: JournalRecord) -> int:
        """Append a record to the journal, which is flushed shortly after; return the journal's size."""
        journal = self._journal
        if journal is None:
            raise InvalidInput("store", self.folder, "it is closed; open the device again")
        if self._failure is not None:
            # Earlier records are unwritten: write them now, or raise instead of accepting this one.
            journal.flush()
            self._failure = None
        if journal.append(record):
            self._waiting.set()
        return journal.size

    def flush(self) -> None:
        """Write all records of the journal now."""
        if self._journal is not None:
            self._journal.flush()
            self._failure = None

    def keep_model(self, model: int, version: int, content: bytes | memoryview) -> None:
        """Write the file of a model as received."""
        path = self._model_path(model, version)
        write_whole(path, content, mode=self._mode)
        self._checksums[path.name] = checksum(content)

    def model(self, model: int, version: int) -> bytes:
        """The file of a model."""
        path = self._model_path(model, version)
        content = path.read_bytes()
        require_checksum(content, self._checksums.get(path.name))
        return content

    def keep_message(self, parts: Sequence[bytes | memoryview]) -> str:
        """Write the message for the server, beside an earlier one, and return the name of its file."""
        known = checksum(*parts)
        name = f"message-{known}.safetensors"
        with replacing(self.folder / name, mode=self._mode) as descriptor:
            for part in parts:
                write_all(descriptor, part)
        self._checksums[name] = known
        return name

    def message(self, name: str) -> bytes:
        """The content of a message."""
        if name not in self._checksums:
            raise FileNotFoundError(f"{name[:60]!r}")
        content = (self.folder / name).read_bytes()
        require_checksum(content, self._checksums[name])
        return content

    def _write(self) -> None:
        """Flush the journal shortly after its first buffered record, until the store is closed."""
        while self._waiting.wait():
            # Cleared before `_closed` is checked; clearing it afterwards could miss a close in between.
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
        """Close it and forget it: its descriptor may be reused by another file."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    @property
    def _journal_path(self) -> Path:
        return self.folder / f"journal-{self._number}"

    def _model_path(self, model: int, version: int) -> Path:
        return self.folder / _MODELS / f"{model}-{version}.safetensors"
