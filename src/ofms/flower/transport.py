"""The coordinator's transport on Flower's grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from ofms.coordinator.transport import Kind, Reply
from ofms.core.errors import InvalidInput
from ofms.flower.asked import EXCHANGE, JOIN
from ofms.flower.fleet_api import Gone, pull_reply, replies_to
from ofms.flower.objects import Transfer
from ofms.flower.opaque import read_record
from ofms.flower.records import to_record

_MESSAGE_TYPES: dict[Kind, str] = {"join": JOIN, "exchange": EXCHANGE}


class GridTransport:
    """Messages to and from the nodes of a SuperLink.

    Parameters
    ----------
    largest
        Gives the bytes of the largest reply that is accepted.
    """

    def __init__(self, grid: Grid, largest: Callable[[], int]) -> None:
        self._grid, self._largest = grid, largest
        # Announced by their nodes, which may still be uploading them: they must not delay the others.
        self._announced: dict[str, Transfer] = {}

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
        """The replies that are complete; one that cannot be read does not affect the others."""
        messages = set(messages)
        self._announced = {asked: reply for asked, reply in self._announced.items() if asked in messages}
        # The SuperLink forgets a message whose reply was announced: asked again, it would report an error.
        if others := messages - self._announced.keys():
            self._announced |= replies_to(self._grid, others)
        found = [reply for asked, transfer in self._announced.items() if (reply := self._pull(asked, transfer))]
        for reply in found:
            del self._announced[reply.message]
        return found

    def _pull(self, asked: str, transfer: Transfer) -> Reply | None:
        node = int(transfer.metadata.src_node_id)
        if transfer.error is not None:
            return Reply(asked, node, error=transfer.error, lost=True)
        try:
            record = pull_reply(self._grid, transfer, self._largest())
            return None if record is None else Reply(asked, node, read_record(record)[0])
        except Gone as error:
            return Reply(asked, node, error=str(error), lost=True)
        except InvalidInput as error:
            return Reply(asked, node, error=str(error))
