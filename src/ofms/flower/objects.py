"""Flower's objects as bytes, made of its protocol buffers alone: a message, its dictionary of records, its one record.

An object is a line with its type, the ids of its children and its length, a zero byte, and its body; its id is the
SHA-256 of all of it. Flower's own classes for them import all of Flower.

Each object is a request on its own, and the receiver needs the record alone. So between a server and a node that both
know it, the record is the only object of a message and gives it its id; a SuperNode needs all three.

Objects to be sent are kept in parts, one of which is the content of the message: every copy of it in another object or
request would take as much memory as the models that a device holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.flower.opaque import CONTENT, RECORD, record_of
from ofms.flower.parts import Parts, field_head, read_fields
from ofms.flower.private import (
    HEAD_BODY_DIVIDER,
    HEAD_VALUE_DIVIDER,
    ConfigRecord,
    Message,
    Metadata,
    ObjectTree,
    RecordDict,
    now,
)

_FIELDS = {int: "sint64", float: "double", bytes: "bytes"}
# Numbers of fields, and the bytes of the longest first line of a record, which has no children.
_ITEMS = ConfigRecord.DESCRIPTOR.fields_by_name["items"].number
_KEY, _VALUE = (ConfigRecord.Item.DESCRIPTOR.fields_by_name[name].number for name in ("key", "value"))
_BYTES = ConfigRecord.Item.DESCRIPTOR.fields_by_name["value"].message_type.fields_by_name["bytes"].number
_LONGEST_HEAD = 64


@dataclass(eq=False)
class Transfer:
    """A message without its content, and the tree of the objects that are its content.

    Attributes
    ----------
    contents, session
        To be sent: the objects to be pushed by their ids, in their order, and the session in which the SuperLink
        expects them.
    """

    message: bytes
    tree: ObjectTree
    contents: dict[str, Parts] = field(default_factory=dict)
    session: str | None = None

    @property
    def metadata(self) -> Any:
        """Run, sender and type of the message, as the SuperLink checked them."""
        return Message.FromString(self.message).metadata

    @property
    def error(self) -> str | None:
        """Why there is no content."""
        message = Message.FromString(self.message)
        return str(message.error.reason) if message.HasField("error") else None

    @property
    def is_record_alone(self) -> bool:
        """Whether the record is the only object."""
        return not self.tree.children

    @property
    def record(self) -> str:
        """The id of the one record; a message with other objects is rejected before any of them is transferred."""
        if self.is_record_alone:
            return str(self.tree.object_id)
        dictionaries = self.tree.children
        records = dictionaries[0].children if len(dictionaries) == 1 else []
        if len(records) != 1 or records[0].children:
            raise InvalidInput("message", "of other objects", "a message is one record")
        return str(records[0].object_id)


def make_message(metadata: Metadata, content: bytes, wait: float = 0.0, *, alone: bool = False) -> Transfer:
    """A message with an encoded envelope; `wait` is how many seconds its carrier waits for the answer.

    With `alone`, its record is its only object. Otherwise the record is pushed last: its receiver pulls nothing else,
    and then confirms the message, whereupon the SuperLink deletes all objects of it, also those that are still
    expected.
    """
    record = _object("ConfigRecord", (), *_record_body(content, wait))
    announced = Message(metadata=metadata, content=RecordDict())
    if alone:
        announced.metadata.message_id = _id(record)
        return Transfer(announced.SerializeToString(), ObjectTree(object_id=_id(record)), {_id(record): record})
    names = json.dumps({RECORD: _id(record)}).encode()
    dictionary = _object("RecordDict", (_id(record),), names)
    body = Message(metadata=metadata).SerializeToString(deterministic=True)
    message = _object("Message", (_id(dictionary),), body)
    tree = ObjectTree(object_id=_id(record))
    for each in (dictionary, message):
        tree = ObjectTree(object_id=_id(each), children=[tree])
    announced.metadata.message_id = _id(message)
    contents = {_id(each): each for each in (message, dictionary, record)}
    return Transfer(announced.SerializeToString(), tree, contents)


def make_reply(received: bytes, content: bytes, *, alone: bool = False) -> Transfer:
    """A reply to a message that was received, with an encoded envelope."""
    return make_message(_reply_to(Message.FromString(received).metadata), content, alone=alone)


def decode_record(content: bytes | memoryview) -> dict[str, Any]:
    """The values of a record that was transferred, its content without a copy; other objects are rejected."""
    try:
        whole = memoryview(content)
        head, _, _ = bytes(whole[:_LONGEST_HEAD]).partition(HEAD_BODY_DIVIDER)
        if head.decode().split(HEAD_VALUE_DIVIDER)[0] != "ConfigRecord":
            raise ValueError("an object of another type")
        found: dict[str, Any] = {}
        for number, item in read_fields(whole[len(head) + len(HEAD_BODY_DIVIDER) :]):
            if number != _ITEMS:
                raise ValueError(f"a record with a field {number}")
            found |= _content_of(item) or _value_of(item)
        return found
    except Exception as error:
        raise InvalidInput("message", type(error).__name__, "it is not a record of Flower") from None


def _content_of(item: memoryview) -> dict[str, memoryview] | None:
    """The value of a record's item that is its content, as a part of it; None for another item."""
    fields = dict(read_fields(item))
    if bytes(fields.get(_KEY, b"")) != CONTENT.encode():
        return None
    value = dict(read_fields(fields[_VALUE]))
    return {CONTENT: value[_BYTES]} if list(value) == [_BYTES] else None


def _value_of(item: memoryview) -> dict[str, Any]:
    """The key and the value of a record's item."""
    found = ConfigRecord.Item.FromString(item)
    return {found.key: getattr(found.value, found.value.WhichOneof("value"))}


def _reply_to(asked: Any) -> Any:
    created = now().timestamp()
    reply = Metadata(
        run_id=asked.run_id,
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        message_type=asked.message_type,
        created_at=created,
        # It expires together with the message that it answers.
        ttl=asked.created_at + asked.ttl - created,
    )
    if asked.HasField("dst_task_id"):
        reply.src_task_id = asked.dst_task_id
    if asked.HasField("src_task_id"):
        reply.dst_task_id = asked.src_task_id
    return reply


def _record_body(content: bytes, wait: float) -> list[bytes]:
    """The items of a record, one after another; that of the content is encoded around it, without a copy."""
    parts: list[bytes] = []
    for key, value in record_of(content, wait).items():
        record = ConfigRecord()
        item = record.items.add()
        item.key = key
        if key != CONTENT:
            setattr(item.value, _FIELDS[type(value)], value)
            parts.append(record.SerializeToString())
            continue
        head = field_head(item.value, "bytes", len(content))
        head = item.SerializeToString() + field_head(item, "value", len(head) + len(content)) + head
        parts += [field_head(record, "items", len(head) + len(content)) + head, content]
    return parts


def _object(kind: str, children: Sequence[str], *body: bytes) -> Parts:
    head = HEAD_VALUE_DIVIDER.join((kind, ",".join(children), str(sum(map(len, body)))))
    return Parts(head.encode() + HEAD_BODY_DIVIDER, *body)


def _id(content: Parts) -> str:
    found = sha256()
    for part in content:
        found.update(part)
    return found.hexdigest()
