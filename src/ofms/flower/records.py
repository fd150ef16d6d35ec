"""Encoded envelopes as the content of Flower's messages and back: opaque bytes, nothing pickled. Imports no PyTorch."""

from __future__ import annotations

import math
from itertools import pairwise

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ofms.core.errors import InvalidInput
from ofms.storage.envelope import PROTOCOL, array_bounds, require_protocol

_HEAD, _CONTENT, _BYTES = "message", "content", "bytes"
_LEAST_PIECE = 16 * 1024


def to_record(content: bytes, *, wait: float = 0.0) -> RecordDict:
    """Wrap an encoded envelope; `wait` is how many seconds the carrier waits for the device's answer.

    The bytes are split around large arrays, because Flower transfers a piece shared by several messages, such as a
    model sent to many devices, only once.
    """
    bounds = sorted({0, len(content), *array_bounds(content, _LEAST_PIECE)})
    pieces = [content[first:stop] for first, stop in pairwise(bounds)]
    arrays = {f"{place:06d}": Array("uint8", (len(piece),), _BYTES, piece) for place, piece in enumerate(pieces)}
    head = ConfigRecord({"protocol": PROTOCOL, "wait": float(wait)})
    return RecordDict({_HEAD: head, _CONTENT: ArrayRecord(arrays)})


def from_record(record: RecordDict) -> tuple[bytes, float]:
    """Unwrap the bytes of an envelope and `wait`, or reject a message without one."""
    try:
        head = record.config_records[_HEAD]
        require_protocol(head["protocol"])
        pieces = record.array_records[_CONTENT]
        content = b"".join(pieces[name].data for name in sorted(pieces))
        wait = float(head["wait"])  # type: ignore[arg-type]
        if not 0 <= wait < math.inf:
            raise InvalidInput("message", f"wait {wait}", "it must be a number of seconds")
        return content, wait
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput("message", type(error).__name__, "it contains no envelope") from None
