"""Encoded envelopes as the content of Flower's messages and back, for its apps: one opaque record. Imports no PyTorch.

Flower transfers each object of a message with a request of its own, on both sides of the SuperLink, so a message has
as few as possible: itself, its dictionary of records, and one record.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from ofms.core.errors import InvalidInput
from ofms.flower.opaque import RECORD, read_record, record_of


def to_record(content: bytes, *, wait: float = 0.0) -> RecordDict:
    """Wrap an encoded envelope; `wait` is how many seconds the carrier waits for the device's answer."""
    return RecordDict({RECORD: ConfigRecord(record_of(content, wait))})


def from_record(content: RecordDict) -> tuple[bytes, float]:
    """Unwrap the bytes of an envelope and `wait`, or reject a message without one."""
    try:
        record = content.config_records[RECORD]
    except KeyError:
        raise InvalidInput("message", ", ".join(content)[:40], "it contains no envelope") from None
    envelope, wait = read_record(record)
    return bytes(envelope), wait
