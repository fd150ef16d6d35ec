"""Flower's messages, as its SuperLink and SuperNodes make them."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Error, Message, Metadata, RecordDict

from ofms.coordinator.transport import Kind
from ofms.flower import client_app
from ofms.flower.records import from_record, to_record

_TYPES: dict[Kind, str] = {"join": "query.join", "exchange": "train.exchange"}


def flower_message(content: RecordDict | Error, kind: Kind, *, source: int = 2, reply_to: str = "") -> Message:
    metadata = Metadata(1, "a", source, 1, reply_to, "0", time.time(), 60.0, _TYPES[kind])
    return Message(content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def carry_record(content: RecordDict, kind: Kind, store: Path) -> bytes:
    """Run the client app on a message; the answer's bytes."""
    context = Context(1, 1, {"store": str(store)}, RecordDict(), {})
    return from_record(client_app.app(flower_message(content, kind), context).content)[0]


def carry(content: bytes, kind: Kind, store: Path, wait: float) -> bytes:
    """Send bytes through Flower's records and the client app; the answer's bytes."""
    return carry_record(to_record(content, wait=wait), kind, store)
