"""Records of a journal: a prediction was made, or a label arrived."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from ofms.core.typing import AnyArray

_PREDICTED, _CLASS, _VALUE = struct.Struct("<cQdB"), struct.Struct("<cQq"), struct.Struct("<cQd")


@dataclass(eq=False, slots=True)
class Predicted:
    """A prediction for a float32 input."""

    id: int
    since: float
    x: AnyArray

    def to_bytes(self) -> bytes:
        head = _PREDICTED.pack(b"p", self.id, self.since, self.x.ndim)
        return head + struct.pack(f"<{self.x.ndim}I", *self.x.shape) + self.x.tobytes()


@dataclass(slots=True)
class Labelled:
    """A label: a class number or a value.

    >>> read_record(Labelled(3, 7).to_bytes()), read_record(Labelled(4, 0.1).to_bytes())
    (Labelled(id=3, y=7), Labelled(id=4, y=0.1))
    """

    id: int
    y: float | int

    def to_bytes(self) -> bytes:
        if isinstance(self.y, int):
            return _CLASS.pack(b"c", self.id, self.y)
        return _VALUE.pack(b"v", self.id, self.y)


JournalRecord = Predicted | Labelled


def read_record(record: bytes) -> JournalRecord:
    """Decode a record; ValueError if it is none."""
    try:
        return _read(record)
    except struct.error as error:
        raise ValueError(f"a record of {len(record)} bytes is none ({error})") from None


def _read(record: bytes) -> JournalRecord:
    if record[:1] == b"p":
        _, id, since, dimensions = _PREDICTED.unpack_from(record)
        shape = struct.unpack_from(f"<{dimensions}I", record, _PREDICTED.size)
        content = record[_PREDICTED.size + 4 * dimensions :]
        return Predicted(id, since, np.frombuffer(content, dtype=np.float32).reshape(shape).copy())
    _, id, y = (_CLASS if record[:1] == b"c" else _VALUE).unpack(record)
    return Labelled(id, y)
