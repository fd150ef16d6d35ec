"""The coordinator's transport on Flower's grid."""

from __future__ import annotations

from collections.abc import Iterable

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from ofms.coordinator.transport import Kind, Reply
from ofms.core.errors import InvalidInput
from ofms.flower.records import from_record, to_record

_MESSAGE_TYPES: dict[Kind, str] = {"join": "query.join", "exchange": "train.exchange"}


class GridTransport:
    """Messages to and from the SuperNodes of a SuperLink."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> dict[bytes, int]:
        return {bytes(node.public_key).strip(): int(node.node_id) for node in self._grid.get_nodes()}

    def send(self, node: int, kind: Kind, content: bytes, *, wait: float, lifetime: float) -> str | None:
        message = Message(to_record(content, wait=wait), node, _MESSAGE_TYPES[kind], ttl=lifetime)
        # For a message that the SuperLink does not accept, because its node just disconnected or it is too large,
        # Flower returns None or nothing at all.
        for number in self._grid.push_messages([message]):
            if number:
                return str(number)
        return None

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies so far; one that Flower cannot read does not affect the others."""
        messages = list(messages)
        try:
            return [_reply(message) for message in self._grid.pull_messages(messages)]
        except httpx.HTTPError:
            raise
        except Exception as error:
            if len(messages) == 1:
                return [Reply(messages[0], 0, error=type(error).__name__)]
            return [reply for message in messages for reply in self.receive([message])]


def _reply(message: Message) -> Reply:
    asked, node = str(message.metadata.reply_to_message_id), int(message.metadata.src_node_id)
    if message.has_error():
        return Reply(asked, node, error=str(message.error.reason), lost=True)
    try:
        return Reply(asked, node, from_record(message.content)[0])
    except InvalidInput as error:
        return Reply(asked, node, error=str(error))
