"""Files that content is appended to."""

from __future__ import annotations

import os
from pathlib import Path

from ofms.storage.files import write_all


class GrowingFile:
    """A file to which content is appended, each time all of it or nothing.

    Parameters
    ----------
    size
        The bytes of it that count; later ones, such as those of a truncated record, are dropped.
    mode
        Of the file, whatever the umask is; by default, what that leaves.
    """

    def __init__(self, path: Path, size: int, mode: int = 0o666) -> None:
        self.path, self.size = path, size
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
        if mode != 0o666:
            os.fchmod(self._descriptor, mode)
        self._cut()

    def append(self, content: bytes) -> None:
        try:
            write_all(self._descriptor, content)
        except BaseException as error:
            # A part of it would hide what is appended later.
            self._cut()
            if isinstance(error, OSError):
                error.filename = error.filename or str(self.path)
            raise
        self.size += len(content)

    def close(self) -> None:
        os.close(self._descriptor)

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size)
        os.lseek(self._descriptor, 0, os.SEEK_END)
