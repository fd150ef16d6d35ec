"""Encoded envelopes as the content of Flower's messages and back: one opaque record. Imports no PyTorch.

Flower transfers each object of a message with a request of its own, on both sides of the SuperLink, so a message has
as few as possible: itself, its dictionary of records, and one record.
"""

from __future__ import annotations

import math

from flwr.app import ConfigRecord, RecordDict

from ofms.core.errors import InvalidInput
from ofms.storage.envelope import require_protocol

# Of the record. Protocol 2 had a record per array; that of the envelope inside did not change.
PROTOCOL = 3
_RECORD = "message"


def to_record(content: bytes, *, wait: float = 0.0) -> RecordDict:
    """Wrap an encoded envelope; `wait` is how many seconds the carrier waits for the device's answer."""
    return RecordDict({_RECORD: ConfigRecord({"protocol": PROTOCOL, "wait": float(wait), "content": content})})


def from_record(content: RecordDict) -> tuple[bytes, float]:
    """Unwrap the bytes of an envelope and `wait`, or reject a message without one."""
    try:
        record = content.config_records[_RECORD]
    except KeyError:
        raise InvalidInput("message", ", ".join(content)[:40], "it contains no envelope") from None
    return read_record(record)


def read_record(record: ConfigRecord) -> tuple[bytes, float]:
    """Read the one record of a message."""
    try:
        require_protocol(record["protocol"], PROTOCOL)
        content, wait = record["content"], float(record["wait"])  # type: ignore[arg-type]
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("message", type(error).__name__, "it contains no envelope") from None
    if not isinstance(content, bytes):
        raise InvalidInput("message", type(content).__name__, "it contains no envelope")
    if not 0 <= wait < math.inf:
        raise InvalidInput("message", f"wait {wait}", "it must be a number of seconds")
    return content, wait
