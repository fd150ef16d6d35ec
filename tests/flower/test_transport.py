"""Flower's grid as a transport: rejected messages, incomplete and unreadable replies, a SuperLink that is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from ofms.coordinator.transport import Clock, Reply
from ofms.flower.objects import decode_record, make_reply
from ofms.flower.opaque import read_record
from ofms.flower.records import from_record, to_record
from ofms.flower.transport import GridTransport
from ofms.storage.envelope import Envelope, encode
from tests.flower.messages import flower_message
from tests.memory_transport import FakeClock

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
        # What a server pushes, in its order; ids of messages as the SuperLink returns them, or its own.
        self.pushed: list[Any] = []
        self.ids: list[str] | None = None
        self.stores = True
        self.confirmed: list[str] = []
        self.asked: list[list[str]] = []
        self.failure: Exception | None = None
        self._client = httpx.Client()

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        if self.failure is not None:
            raise self.failure
        self.asked.append(sorted(request.message_ids))
        found = [asked for asked in request.message_ids if asked in self.replies]
        protos = [message_to_proto(self.replies.pop(asked)) for asked in found]
        return PullAppMessagesResponse(
            messages_list=protos, message_object_trees=[self.trees[asked] for asked in found]
        )

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:  # noqa: N802
        if self.failure is not None:
            raise self.failure
        (message,), (tree,) = request.messages_list, request.message_object_trees
        self.pushed.append(message)
        names = [message.metadata.message_id] if self.ids is None else self.ids
        objects = [each.object_id for each in iterate_object_tree(tree)]
        return PushAppMessagesResponse(message_ids=names, objects_to_push=objects, session_id="s")

    def PushObject(self, request: Any) -> PushObjectResponse:  # noqa: N802
        request = PushObjectRequest.FromString(bytes(request.SerializeToString(deterministic=True)))
        assert get_object_id(request.object_content) == request.object_id
        self.pushed.append(request.object_content)
        return PushObjectResponse(stored=self.stores)

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content = self.objects.get(request.object_id)
        if content is None:
            return PullObjectResponse(object_found=False)
        return PullObjectResponse(object_found=True, object_available=content != b"", object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


class FakeGrid:
    node, run = Node(node_id=1), SimpleNamespace(run_id=1)

    def __init__(self, superlink: FakeSuperLink) -> None:
        self._runtime_client = superlink
        self.connected: list[int] = []

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(public_key=b"key", node_id=number) for number in self.connected]


def transport_of(
    grid: FakeGrid,
    largest: Callable[[], int] = lambda: LARGEST,
    announce: Callable[[int], None] = lambda largest: None,
    clock: Clock = time,
) -> GridTransport:
    return GridTransport(grid, largest, announce, clock)  # type: ignore[arg-type]


@pytest.fixture
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a server app, whose messages have a sender."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.usefixtures("in_a_task")
@pytest.mark.parametrize("ids", [[""], []])
def test_a_message_that_the_superlink_does_not_accept_has_no_id(ids: list[str]) -> None:
    superlink = FakeSuperLink()
    superlink.ids = ids
    transport = transport_of(FakeGrid(superlink))
    assert transport.send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0) is None
    (message,) = superlink.pushed
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (7, "train.exchange")
    superlink.ids = ["m1"]
    assert transport.send(7, "join", CONTENT, wait=5.0, lifetime=9.0) == "m1"
    too_large = httpx.HTTPStatusError(
        "413", request=httpx.Request("POST", "https://a"), response=httpx.Response(httpx.codes.REQUEST_ENTITY_TOO_LARGE)
    )
    superlink.failure = too_large
    assert transport.send(7, "join", CONTENT, wait=5.0, lifetime=9.0) is None


@pytest.mark.usefixtures("in_a_task")
def test_the_record_of_a_message_is_pushed_last() -> None:
    """A node pulls the record alone and then confirms, which deletes what is not pushed yet: the server app failed."""
    superlink = FakeSuperLink()
    transport = transport_of(FakeGrid(superlink))
    number = transport.send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0)
    message, *objects = superlink.pushed
    assert [each.partition(b" ")[0] for each in objects] == [b"Message", b"RecordDict", b"ConfigRecord"]
    contents = {get_object_id(each): each for each in objects}
    assert isinstance(number, str)
    whole = inflate_object_from_contents(number, contents)
    assert isinstance(whole, Message)
    assert from_record(whole.content) == (CONTENT, 5.0)
    assert (whole.metadata.dst_node_id, whole.metadata.ttl, whole.metadata.src_node_id) == (7, 9.0, 1)
    assert message.metadata.message_id == number


@pytest.mark.usefixtures("in_a_task")
def test_equal_messages_share_no_object() -> None:
    superlink = FakeSuperLink()
    transport = transport_of(FakeGrid(superlink))
    for node in (7, 8):
        transport.send(node, "exchange", CONTENT, wait=5.0, lifetime=9.0)
    objects = [each for each in superlink.pushed if isinstance(each, bytes)]
    assert len({get_object_id(each) for each in objects}) == 6


def answer_alone(superlink: FakeSuperLink, asked: str) -> None:
    """As a device that connects itself: its reply is a record and nothing else."""
    whole = message_to_proto(flower_message(to_record(b"grant"), "exchange"))
    whole.metadata.message_id, whole.metadata.dst_node_id = asked, 7
    found = make_reply(whole.SerializeToString(), CONTENT, alone=True)
    superlink.replies[asked] = message_from_proto(ProtoMessage.FromString(found.message))
    superlink.trees[asked] = found.tree
    superlink.objects |= {name: bytes(each) for name, each in found.contents.items()}


@pytest.mark.usefixtures("in_a_task")
def test_messages_to_a_node_that_reads_records_alone_have_no_other_object() -> None:
    """A request less for each object; but a SuperNode, with which a device may come back, needs all of them."""
    superlink, clock = FakeSuperLink(), FakeClock()
    grid = FakeGrid(superlink)
    transport = transport_of(grid, clock=clock)

    def send(node: int = 7) -> tuple[str, list[bytes]]:
        superlink.pushed.clear()
        number = transport.send(node, "exchange", CONTENT, wait=5.0, lifetime=9.0)
        assert isinstance(number, str)
        return number, [each.partition(b" ")[0] for each in superlink.pushed[1:]]

    def receive(number: str) -> Reply:
        (found,) = transport.receive([number])
        return found

    whole, alone = [b"Message", b"RecordDict", b"ConfigRecord"], [b"ConfigRecord"]
    number, kinds = send()
    assert kinds == whole
    answer_alone(superlink, number)
    assert (receive(number).content, receive_nothing(transport)) == (CONTENT, [])
    number, kinds = send()
    assert kinds == alone
    assert (number, (CONTENT, 5.0)) == (get_object_id(superlink.pushed[1]), record_in(superlink.pushed[1]))
    assert send(8)[1] == whole, "another node"
    # Each of these may be a SuperNode that was started instead.
    answer_alone(superlink, number)
    receive(number)
    grid.connected = [8]
    transport.nodes()
    number, kinds = send()
    assert kinds == whole, "it was absent"
    answer_alone(superlink, number)
    receive(number)
    number, kinds = send()
    assert kinds == alone
    superlink.replies[number] = failed = reply(number, Error(3, "no such object"))
    superlink.trees[number] = get_object_tree(failed)
    assert receive(number).lost
    number, kinds = send()
    assert kinds == whole, "it could not read its message"
    answer_alone(superlink, number)
    receive(number)
    assert send()[1] == alone
    clock.sleep(10.0)
    receive_nothing(transport)
    assert send()[1] == whole, "it did not answer"


def receive_nothing(transport: GridTransport) -> list[Reply]:
    return transport.receive(["other"])


def record_in(content: bytes) -> tuple[bytes | memoryview, float]:
    return read_record(decode_record(content))


@pytest.mark.usefixtures("in_a_task")
def test_a_message_whose_objects_the_superlink_does_not_store_was_not_sent() -> None:
    superlink = FakeSuperLink()
    superlink.stores = False
    assert transport_of(FakeGrid(superlink)).send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0) is None


@pytest.mark.usefixtures("in_a_task")
def test_larger_replies_are_announced_before_the_message_that_they_answer() -> None:
    """Models were added: the SuperLink would reject reports on them for ever."""
    superlink, sizes, announced = FakeSuperLink(), [10, 10, 30], list[tuple[int, int]]()

    def announce(largest: int) -> None:
        announced.append((largest, sum(not isinstance(each, bytes) for each in superlink.pushed)))

    transport = transport_of(FakeGrid(superlink), lambda: sizes[0], announce)
    for _ in range(3):
        transport.send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0)
        sizes.pop(0)
    assert announced == [(10, 0), (30, 2)]


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
    transport = transport_of(FakeGrid(superlink))
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
    transport = transport_of(FakeGrid(superlink))
    assert [each.message for each in transport.receive(["slow", "quick"])] == ["quick"]
    assert transport.receive(["slow"]) == []
    superlink.objects[uploading] = content
    (found,) = transport.receive(["slow"])
    assert (found.message, found.content) == ("slow", CONTENT)


def test_a_reply_that_the_superlink_forgot_is_lost() -> None:
    superlink = FakeSuperLink([reply("a", to_record(CONTENT))])
    superlink.objects.clear()
    (found,) = transport_of(FakeGrid(superlink)).receive(["a"])
    assert (found.content, found.lost) == (None, True)


def test_a_reply_with_many_objects_is_refused_before_any_of_them_is_read() -> None:
    superlink = FakeSuperLink([reply("a", to_record(CONTENT))])
    children = [ObjectTree(object_id=f"{number:064x}") for number in range(1000)]
    superlink.trees["a"] = ObjectTree(object_id="0" * 64, children=children)
    superlink.objects.clear()
    (found,) = transport_of(FakeGrid(superlink)).receive(["a"])
    assert "a message is one record" in found.error
    assert superlink.confirmed == ["0" * 64], "the SuperLink may forget them"


@pytest.mark.usefixtures("in_a_task")
def test_the_superlink_deletes_messages_that_expired_or_were_answered() -> None:
    """Of three messages, one is answered, one lost with its node, and one forgotten: no device confirms them."""
    superlink = FakeSuperLink([reply("a", to_record(CONTENT)), reply("lost", Error(3, "node unavailable"))])
    clock, grid = FakeClock(), FakeGrid(superlink)
    answer, error = (superlink.trees[asked].object_id for asked in ("a", "lost"))
    transport = transport_of(grid, clock=clock)
    for number in ("a", "lost", "forgotten"):
        superlink.ids = [number]
        transport.send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0)
    assert {each.message for each in transport.receive(["a", "lost", "forgotten"])} == {"a", "lost"}
    assert superlink.confirmed == [answer]
    transport.receive(["other"])
    assert sorted(superlink.confirmed) == sorted([answer, error, "a"]), "the others' devices may still be reading them"
    # A reply that nobody awaits arrives in time; Flower announces an error for what expired without one.
    late = reply("forgotten", to_record(CONTENT))
    superlink.replies["forgotten"], superlink.trees["forgotten"] = late, get_object_tree(late)
    clock.sleep(9.0)
    superlink.confirmed.clear()
    transport.receive(["other"])
    assert set(superlink.confirmed) == {"lost", "forgotten", get_object_tree(late).object_id}
    assert ["forgotten", "lost"] in superlink.asked, "so that Flower deletes their rows"
    asked = len(superlink.asked)
    transport.receive(["other"])
    assert len(superlink.asked) == asked + 1
    assert len(superlink.confirmed) == 3, "once"


def test_a_reply_that_nobody_awaits_any_more_is_deleted_when_its_upload_must_have_ended() -> None:
    slow, clock = reply("slow", to_record(CONTENT)), FakeClock()
    superlink = FakeSuperLink([slow])
    superlink.objects[superlink.trees["slow"].children[0].children[0].object_id] = b""
    transport = transport_of(FakeGrid(superlink), clock=clock)
    assert transport.receive(["slow"]) == []
    for seconds, confirmed in ((0.0, []), (179.0, []), (1.0, [superlink.trees["slow"].object_id])):
        clock.sleep(seconds)
        transport.receive(["other"])
        assert superlink.confirmed == confirmed


def test_a_reply_whose_node_was_absent_while_it_uploaded_is_lost() -> None:
    """Flower would wait for the other objects for three minutes, and accepts no other reply to that message."""
    superlink = FakeSuperLink([reply("a", to_record(CONTENT)), reply("b", to_record(CONTENT))])
    names = {asked: superlink.trees[asked].children[0].children[0].object_id for asked in ("a", "b")}
    contents = {asked: superlink.objects[name] for asked, name in names.items()}
    superlink.objects |= dict.fromkeys(names.values(), b"")
    grid = FakeGrid(superlink)
    transport = transport_of(grid)
    assert transport.receive(["a", "b"]) == []
    grid.connected = [7]
    transport.nodes()
    assert transport.receive(["a", "b"]) == [], "it is still uploading"
    grid.connected = []
    transport.nodes()
    grid.connected = [7]
    transport.nodes()
    superlink.objects[names["b"]] = contents["b"]
    lost, whole = sorted(transport.receive(["a", "b"]), key=lambda each: each.message)
    assert (lost.message, lost.lost, lost.error) == ("a", True, "it disconnected while it uploaded")
    assert (whole.message, whole.content) == ("b", CONTENT), "complete before it disconnected"
    assert transport.receive(["c"]) == []


def test_a_superlink_that_does_not_answer_is_not_taken_for_a_bad_reply() -> None:
    superlink = FakeSuperLink()
    superlink.failure = httpx.ConnectError("gone")
    with pytest.raises(httpx.HTTPError):
        transport_of(FakeGrid(superlink)).receive(["a", "b"])
