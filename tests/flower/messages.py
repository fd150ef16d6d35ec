"""Flower's messages, as its SuperLink and SuperNodes make them."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from ofms.coordinator.transport import Kind
from ofms.flower import client_app
from ofms.flower.objects import Transfer
from ofms.flower.parts import Parts
from ofms.flower.records import from_record, to_record

_TYPES: dict[Kind, str] = {"join": "query.join", "exchange": "train.exchange"}


def flower_message(content: RecordDict | Error, kind: Kind, *, source: int = 2, reply_to: str = "") -> Message:
    metadata = Metadata(1, "a", source, 1, reply_to, "0", time.time(), 60.0, _TYPES[kind])
    return Message(content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def transfer_of(message: Message, *, objects: int = 0) -> Transfer:
    """A message as the SuperLink announces it, with its objects; `objects` are added to those that it has."""
    contents = {name: Parts(each.deflate()) for name, each in get_all_nested_objects(message).items()}
    tree = get_object_tree(message)
    tree.children.extend(ObjectTree(object_id=f"{number:064x}") for number in range(objects))
    return Transfer(message_to_proto(remove_content_from_message(message)).SerializeToString(), tree, contents)


def carry_record(content: RecordDict, kind: Kind, store: Path) -> bytes:
    """Run the client app on a message; the answer's bytes."""
    context = Context(1, 1, {"store": str(store)}, RecordDict(), {})
    return from_record(client_app.app(flower_message(content, kind), context).content)[0]


def carry(content: bytes, kind: Kind, store: Path, wait: float) -> bytes:
    """Send bytes through Flower's records and the client app; the answer's bytes."""
    return carry_record(to_record(content, wait=wait), kind, store)
