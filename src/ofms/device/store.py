"""A device's folder: the last snapshot, the journal since, the models held; one process writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import safetensors.torch

from ofms.compute.local import Tensors
from ofms.core.errors import InvalidInput
from ofms.core.files import FolderLock, require_writable, write_whole
from ofms.device.journal import Journal, read_records
from ofms.device.letters import Letter, seal, unseal

_SNAPSHOT, _MODELS = "snapshot.safetensors", "models"


class Store:
    """What a device wrote, and where it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        require_writable(folder / _MODELS)
        self._lock = FolderLock(folder)
        self._number = 0
        self._journal: Journal | None = None

    def close(self) -> None:
        self._close_journal()
        self._lock.close()

    def snapshot(self) -> Letter | None:
        """The last one, or None in a new store."""
        path = self.folder / _SNAPSHOT
        if not path.exists():
            return None
        letter = unseal(path.read_bytes())
        self._number = int(letter.values["number"])
        return letter

    def keep_snapshot(self, letter: Letter, versions: dict[int, int]) -> None:
        """Write everything, begin a new journal, and remove what nobody needs any more."""
        self._number += 1
        content = seal(Letter(letter.kind, {**letter.values, "number": self._number}, letter.arrays))
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

    def records(self) -> Iterator[bytes]:
        """What the journal has since the snapshot; from then on it is written to."""
        self._journal = Journal(self._journal_path)
        yield from read_records(self._journal_path)

    def append(self, record: bytes) -> int:
        """Write a record to the journal; its size so far."""
        if self._journal is None:
            raise InvalidInput("store", self.folder, "it was closed; open the device again")
        self._journal.append(record)
        return self._journal.size

    def keep_model(self, model: int, version: int, tensors: Tensors) -> None:
        write_whole(self._model_path(model, version), safetensors.torch.save(tensors))

    def model(self, model: int, version: int) -> Tensors:
        return safetensors.torch.load(self._model_path(model, version).read_bytes())

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
