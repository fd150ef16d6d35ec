"""A journal: records appended one by one, each of which is in the file when `append` returns.

A process that is killed loses nothing that was appended; a record that was cut off by it is dropped when it is read.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

_HEAD = struct.Struct("<II")


class Journal:
    """Append-only records in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = sum(_HEAD.size + len(record) for record in read_records(path))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        # What was cut off goes, else it would hide all that follows.
        os.ftruncate(self._file, whole)
        os.lseek(self._file, 0, os.SEEK_END)
        self.size = whole

    def append(self, record: bytes) -> None:
        """Write a record, whole or not at all: half of one would hide all that follows."""
        content = _HEAD.pack(len(record), zlib.crc32(record)) + record
        try:
            if os.write(self._file, content) < len(content):
                raise OSError(errno.ENOSPC, "the journal could not be written", str(self.path))
        except OSError:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, 0, os.SEEK_END)
            raise
        self.size += len(content)

    def close(self) -> None:
        os.close(self._file)


def read_records(path: Path) -> list[bytes]:
    """The whole records of a journal, up to the first one that is not."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    records, place = [], 0
    while place + _HEAD.size <= len(content):
        size, checksum = _HEAD.unpack_from(content, place)
        record = content[place + _HEAD.size : place + _HEAD.size + size]
        if len(record) < size or zlib.crc32(record) != checksum:
            break
        records.append(record)
        place += _HEAD.size + size
    return records
