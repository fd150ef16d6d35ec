"""Flower's objects from its protocol buffers alone, against Flower's own classes; what a node imports."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, Metadata
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.recorddict_pb2 import ConfigRecord as ProtoRecord
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from hypothesis import given
from hypothesis import strategies as st

import ofms
from ofms.flower import objects
from ofms.flower.fleet_api import _Pulled
from ofms.flower.objects import decode_record, make_message, make_reply
from ofms.flower.opaque import read_record
from ofms.flower.records import to_record
from tests.flower.messages import flower_message, transfer_of
from tests.memory_taken import bytes_taken

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("tasks", [(None, None), (3, 4)])
@pytest.mark.parametrize("content", [b"", b"an envelope", bytes(range(256)) * 40])
def test_a_reply_has_the_bytes_that_flower_gives_it(
    content: bytes, tasks: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = Metadata(1, "m", 2, 3, "", "7", NOW.timestamp() - 5.0, 60.0, "train.exchange", *tasks)
    asked = Message(to_record(b"grant"), metadata=metadata)  # type: ignore[call-overload]
    received = message_to_proto(remove_content_from_message(asked)).SerializeToString()
    for module in (objects, sys.modules["flwr.app.message.message"]):
        monkeypatch.setattr(module, "now", lambda: NOW)
    monkeypatch.setattr("os.urandom", bytes)

    expected = Message(to_record(content), reply_to=message_from_proto(ProtoMessage.FromString(received)))
    expected.metadata.__dict__["_message_id"] = expected.object_id
    found = make_reply(received, content)

    objects_of = {name: each.deflate() for name, each in get_all_nested_objects(expected).items()}
    assert {name: bytes(each) for name, each in found.contents.items()} == objects_of
    assert [*found.contents][-1] == found.record, "pushed last: its receiver waits for it alone"
    assert found.tree == get_object_tree(expected)
    assert ProtoMessage.FromString(found.message) == message_to_proto(remove_content_from_message(expected))
    assert read_record(decode_record(bytes(found.contents[found.record]))) == (content, 0.0)


def test_a_reply_may_be_a_record_alone() -> None:
    asked = message_to_proto(flower_message(to_record(b"grant"), "exchange")).SerializeToString()
    whole, alone = (make_reply(asked, b"an envelope", alone=each) for each in (False, True))
    assert (whole.is_record_alone, alone.is_record_alone) == (False, True)
    assert [*alone.contents] == [alone.record] == [alone.tree.object_id]
    assert alone.metadata.message_id == get_object_id(bytes(alone.contents[alone.record])), "as the SuperLink checks it"
    assert alone.metadata.reply_to_message_id == whole.metadata.reply_to_message_id == "a"
    assert read_record(decode_record(bytes(alone.contents[alone.record]))) == (b"an envelope", 0.0)


def test_records_of_flower_are_read() -> None:
    transfer = transfer_of(flower_message(to_record(b"x", wait=2.5), "exchange"))
    assert read_record(decode_record(bytes(transfer.contents[transfer.record]))) == (b"x", 2.5)
    values: dict[str, Any] = {"one": 1, "text": "a", "flag": True, "list": [1.0, 2.0]}
    assert decode_record(ConfigRecord(values).deflate())["one"] == 1


@given(st.binary(max_size=40), st.floats(0, 9), st.data())
def test_a_damaged_record_is_read_as_flower_reads_it_or_rejected(
    content: bytes, wait: float, data: st.DataObject
) -> None:
    whole = bytearray(bytes(make_message(ProtoMetadata(), content, wait, alone=True).contents.popitem()[1]))
    for _ in range(data.draw(st.integers(0, 2))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    given_bytes = bytes(whole[: data.draw(st.just(len(whole)) | st.integers(0, len(whole)))])
    try:
        found = decode_record(given_bytes)
    except ofms.InvalidInput:
        return
    items = ProtoRecord.FromString(given_bytes.partition(b"\0")[2]).items
    by_flower = {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in items}
    as_bytes = {key: bytes(value) if isinstance(value, memoryview) else value for key, value in found.items()}
    assert repr(as_bytes) == repr(by_flower), "repr: values may be NaN"


def test_the_content_of_a_record_is_not_copied() -> None:
    size = 2**22
    record = bytes(make_message(ProtoMetadata(), bytes(size), alone=True).contents.popitem()[1])
    assert bytes_taken(lambda: decode_record(record)) < 0.1 * size
    response = PullObjectResponse(object_found=True, object_available=True, object_content=record).SerializeToString()

    def read() -> object:
        pulled = _Pulled()
        pulled.ParseFromString(response)
        assert pulled.object_found
        assert pulled.object_available
        return decode_record(pulled.object_content)

    assert bytes_taken(read) < 0.1 * size


@pytest.mark.parametrize("content", [b"", b"RecordDict  2\0{}", b"ConfigRecord  3\0\xff\xff\xff", b"\xff\xff\0"])
def test_other_objects_are_rejected(content: bytes) -> None:
    with pytest.raises(ofms.InvalidInput, match="not a record of Flower"):
        decode_record(content)


def test_a_node_imports_neither_grpc_nor_all_of_flower_and_leaves_flower_usable() -> None:
    program = """
import sys
import ofms.flower.node
imported = {each.partition(".")[0] for each in sys.modules}
heavy = sorted({"grpc", "typer", "torch", "flwr", "rich", "pygments", "click"} & imported)
import flwr
import flwr.proto.fleet_pb2
import flwr.app
print(heavy, flwr.proto.fleet_pb2.PullMessagesRequest(), flwr.app.Message.__name__)
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["[]", "Message"]
