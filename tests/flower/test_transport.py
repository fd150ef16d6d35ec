"""Flower's grid as a transport: rejected messages, incomplete and unreadable replies, a SuperLink that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from ofms.flower.records import from_record, to_record
from ofms.flower.transport import GridTransport
from ofms.storage.envelope import Envelope, encode
from tests.flower.messages import flower_message

CONTENT = encode(Envelope("request", {"exchange": 1}))
LARGEST = 10_000


def reply(asked: str, content: RecordDict | Error) -> Message:
    return flower_message(content, "exchange", source=7, reply_to=asked)


class FakeSuperLink:
    """The runtime API: replies are announced once, and their objects may follow later."""

    def __init__(self, replies: Iterable[Message] = ()) -> None:
        self.replies = {str(each.metadata.reply_to_message_id): each for each in replies}
        self.trees: dict[str, ObjectTree] = {asked: get_object_tree(each) for asked, each in self.replies.items()}
        self.objects = {
            name: each.deflate() for given in replies for name, each in get_all_nested_objects(given).items()
        }
        self.confirmed: list[str] = []
        self.failure: Exception | None = None
        self._client = httpx.Client()

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        if self.failure is not None:
            raise self.failure
        found = [asked for asked in request.message_ids if asked in self.replies]
        protos = [message_to_proto(self.replies.pop(asked)) for asked in found]
        return PullAppMessagesResponse(
            messages_list=protos, message_object_trees=[self.trees[asked] for asked in found]
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content = self.objects.get(request.object_id)
        if content is None:
            return PullObjectResponse(object_found=False)
        return PullObjectResponse(object_found=True, object_available=content != b"", object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


class FakeGrid:
    node = Node(node_id=1)

    def __init__(self, pushed: list[Any] | None = None, superlink: FakeSuperLink | None = None) -> None:
        self.pushed, self.messages, self._runtime_client = pushed or [], list[Message](), superlink

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        self.messages += messages
        return self.pushed


def transport_of(grid: FakeGrid, largest: Callable[[], int] = lambda: LARGEST) -> GridTransport:
    return GridTransport(grid, largest)  # type: ignore[arg-type]


@pytest.mark.parametrize("pushed", [[None], []])
def test_a_message_that_the_superlink_does_not_accept_has_no_id(
    pushed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    grid = FakeGrid(pushed)
    transport = transport_of(grid)
    assert transport.send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0) is None
    (message,) = grid.messages
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (7, "train.exchange")
    assert from_record(message.content) == (CONTENT, 5.0)
    grid.pushed = ["m1"]
    assert transport.send(7, "join", CONTENT, wait=5.0, lifetime=9.0) == "m1"


def test_an_unreadable_reply_does_not_hide_others() -> None:
    broken = reply("b", to_record(CONTENT + b"!"))
    superlink = FakeSuperLink(
        [
            reply("a", to_record(CONTENT)),
            broken,
            reply("c", RecordDict()),
            reply("d", Error(3, "node unavailable")),
        ]
    )
    for name in get_all_nested_objects(broken):
        superlink.objects[name] = b"nothing that Flower knows"
    transport = transport_of(FakeGrid(superlink=superlink))
    found = {each.message: each for each in transport.receive(["a", "b", "c", "d", "e"])}
    assert set(found) == set("abcd")
    assert (found["a"].node, found["a"].content, found["a"].lost) == (7, CONTENT, False)
    assert (found["b"].content, found["b"].lost) == (None, False)
    assert (found["c"].content, found["c"].lost) == (None, False)
    assert (found["d"].content, found["d"].error, found["d"].lost) == (None, "node unavailable", True)
    assert len(superlink.confirmed) == 3, "a message with an error has no content"


def test_a_reply_that_is_being_uploaded_does_not_delay_others() -> None:
    slow, quick = reply("slow", to_record(CONTENT)), reply("quick", to_record(CONTENT + b"!"))
    superlink = FakeSuperLink([slow, quick])
    uploading = superlink.trees["slow"].children[0].children[0].object_id
    content, superlink.objects[uploading] = superlink.objects[uploading], b""
    transport = transport_of(FakeGrid(superlink=superlink))
    assert [each.message for each in transport.receive(["slow", "quick"])] == ["quick"]
    assert transport.receive(["slow"]) == []
    superlink.objects[uploading] = content
    (found,) = transport.receive(["slow"])
    assert (found.message, found.content) == ("slow", CONTENT)


def test_a_reply_that_the_superlink_forgot_is_lost() -> None:
    superlink = FakeSuperLink([reply("a", to_record(CONTENT))])
    superlink.objects.clear()
    (found,) = transport_of(FakeGrid(superlink=superlink)).receive(["a"])
    assert (found.content, found.lost) == (None, True)


def test_a_reply_with_many_objects_is_refused_before_any_of_them_is_read() -> None:
    superlink = FakeSuperLink([reply("a", to_record(CONTENT))])
    children = [ObjectTree(object_id=f"{number:064x}") for number in range(1000)]
    superlink.trees["a"] = ObjectTree(object_id="0" * 64, children=children)
    superlink.objects.clear()
    (found,) = transport_of(FakeGrid(superlink=superlink)).receive(["a"])
    assert "a message is one record" in found.error
    assert superlink.confirmed == ["0" * 64], "the SuperLink may forget them"


def test_a_superlink_that_does_not_answer_is_not_taken_for_a_bad_reply() -> None:
    superlink = FakeSuperLink()
    superlink.failure = httpx.ConnectError("gone")
    with pytest.raises(httpx.HTTPError):
        transport_of(FakeGrid(superlink=superlink)).receive(["a", "b"])
