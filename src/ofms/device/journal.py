"""A journal: records appended one by one, written to the file shortly after.

A write per record would make the next prediction 10 % slower, because a system call evicts the caches. So records
are buffered for `FLUSH_SECONDS`, and a process that is killed loses no more than that. A truncated record at the end is
dropped when the journal is read; a damaged one with others after it is an error.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from pathlib import Path

from ofms.device.journal_records import JournalRecord, read_record
from ofms.storage.growing import GrowingFile

FLUSH_SECONDS = 0.05
_HEAD = struct.Struct("<II")
# No record is shorter.
_LEAST = 8
_log = logging.getLogger("ofms.device")


class Journal:
    """Append-only records in a file."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        self._waiting: list[JournalRecord] = []
        self._lock = threading.Lock()
        # A truncated record would hide all that follow.
        self._file = GrowingFile(path, sum(_HEAD.size + len(record) for record in _read_records(path)), mode)
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes of the records written."""
        return self._file.size

    def append(self, record: JournalRecord) -> bool:
        """Buffer a record until `flush`; return whether it is the first in the buffer."""
        with self._lock:
            self._waiting.append(record)
            return len(self._waiting) == 1

    def flush(self) -> None:
        """Write the whole buffer or nothing."""
        with self._lock:
            if self._waiting and not self._closed:
                self._file.append(b"".join(_framed(record.to_bytes()) for record in self._waiting))
                self._waiting.clear()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            with self._lock:
                self._closed = True
                self._file.close()


def read_records(path: Path) -> list[JournalRecord]:
    """The records of a journal, without a truncated one at its end."""
    return [read_record(record) for record in _read_records(path)]


def _framed(record: bytes) -> bytes:
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def _has_record(content: bytes, first: int) -> bool:
    """Whether a whole record begins at a place or later: then what is before it was not truncated, but changed."""
    for place in range(first, len(content) - _HEAD.size - _LEAST + 1):
        size, checksum = _HEAD.unpack_from(content, place)
        end = place + _HEAD.size + size
        if size >= _LEAST and end <= len(content) and zlib.crc32(content[place + _HEAD.size : end]) == checksum:
            return True
    return False


def _read_records(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    records, place = [], 0
    while place + _HEAD.size <= len(content):
        size, checksum = _HEAD.unpack_from(content, place)
        end = place + _HEAD.size + size
        record = content[place + _HEAD.size : end]
        if len(record) < size or zlib.crc32(record) != checksum:
            if _has_record(content, place + 1):
                raise ValueError(f"{path.name}: its content changed after it was written")
            _log.warning("%s: the last record is incomplete, and left out", path)
            break
        records.append(record)
        place = end
    return records
