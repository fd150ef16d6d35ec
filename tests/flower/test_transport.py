"""Flower's grid as a transport: rejected messages, unreadable replies and a SuperLink that does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from ofms.flower.records import from_record, to_record
from ofms.flower.transport import GridTransport
from ofms.storage.envelope import Envelope, encode
from tests.flower.messages import flower_message

CONTENT = encode(Envelope("request", {"exchange": 1}))


class FakeGrid:
    """A grid whose answers are given; a reply that is an exception cannot be read."""

    def __init__(self, pushed: list[Any] | None = None, replies: dict[str, Any] | None = None) -> None:
        self.pushed, self.replies, self.messages = pushed or [], replies or {}, list[Message]()

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        self.messages += messages
        return self.pushed

    def pull_messages(self, messages: Iterable[str]) -> list[Message]:
        found = [self.replies[each] for each in messages if each in self.replies]
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        return found


def reply(asked: str, content: RecordDict | Error) -> Message:
    return flower_message(content, "exchange", source=7, reply_to=asked)


@pytest.mark.parametrize("pushed", [[None], []])
def test_a_message_that_the_superlink_does_not_accept_has_no_id(
    pushed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    grid = FakeGrid(pushed)
    transport = GridTransport(grid)  # type: ignore[arg-type]
    assert transport.send(7, "exchange", CONTENT, wait=5.0, lifetime=9.0) is None
    (message,) = grid.messages
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (7, "train.exchange")
    assert from_record(message.content) == (CONTENT, 5.0)
    grid.pushed = ["m1"]
    assert transport.send(7, "join", CONTENT, wait=5.0, lifetime=9.0) == "m1"


def test_an_unreadable_reply_does_not_hide_others() -> None:
    replies = {
        "a": reply("a", to_record(CONTENT)),
        "b": KeyError("broken"),
        "c": reply("c", RecordDict()),
        "d": reply("d", Error(3, "node unavailable")),
    }
    transport = GridTransport(FakeGrid(replies=replies))  # type: ignore[arg-type]
    good, broken, empty, lost = transport.receive(["a", "b", "c", "d", "e"])
    assert (good.message, good.node, good.content, good.lost) == ("a", 7, CONTENT, False)
    assert (broken.message, broken.content, broken.error, broken.lost) == ("b", None, "KeyError", False)
    assert (empty.content, empty.lost) == (None, False)
    assert (lost.content, lost.error, lost.lost) == (None, "node unavailable", True)


def test_a_superlink_that_does_not_answer_is_not_taken_for_a_bad_reply() -> None:
    transport = GridTransport(FakeGrid(replies={"a": httpx.ConnectError("gone")}))  # type: ignore[arg-type]
    with pytest.raises(httpx.HTTPError):
        transport.receive(["a", "b"])
