"""The coordinator's transport on Flower's grid."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.common.serde_utils import metadata_to_proto
from flwr.serverapp import Grid

from ofms.coordinator.transport import Clock, Kind, Reply
from ofms.core.errors import InvalidInput
from ofms.flower.asked import EXCHANGE, JOIN
from ofms.flower.fleet_api import Gone, delete_message, pull_reply, push_message, replies_to
from ofms.flower.objects import Transfer, make_message
from ofms.flower.opaque import read_record

# For which Flower waits for the objects of a message.
_UPLOAD_SECONDS = 180.0
_log = logging.getLogger("ofms.server")
_MESSAGE_TYPES: dict[Kind, str] = {"join": JOIN, "exchange": EXCHANGE}


class GridTransport:
    """Messages to and from the nodes of a SuperLink.

    Parameters
    ----------
    largest
        Gives the bytes of the largest reply that is accepted.
    announce
        Called with these bytes before the first message to which a reply may have as many.
    """

    def __init__(
        self, grid: Grid, largest: Callable[[], int], announce: Callable[[int], None], clock: Clock = time
    ) -> None:
        self._grid, self._largest, self._announce, self._clock = grid, largest, announce, clock
        self._announced_size = 0
        # Announced by their nodes, which may still be uploading them: they must not delay the others.
        self._announced: dict[str, Transfer] = {}
        # Of these, replies whose nodes were absent since: they will not be complete.
        self._interrupted: set[str] = set()
        # Nodes whose last reply was a record alone, so that messages to them may be so too; no SuperNode reads those.
        self._reads_alone: set[int] = set()
        # The nodes of messages and when they expire, and when contents may be deleted: a node that went away never
        # confirms them.
        self._unanswered: dict[str, tuple[int, float]] = {}
        self._deleted_from: dict[str, float] = {}

    def nodes(self) -> dict[bytes, int]:
        found = {bytes(node.public_key).strip(): int(node.node_id) for node in self._grid.get_nodes()}
        connected = set(found.values())
        # A device may come back with a SuperNode.
        self._reads_alone &= connected
        self._interrupted |= {
            asked for asked, reply in self._announced.items() if int(reply.metadata.src_node_id) not in connected
        }
        return found

    def send(self, node: int, kind: Kind, content: bytes, *, wait: float, lifetime: float) -> str | None:
        if (largest := self._largest()) != self._announced_size:
            self._announce(largest)
            self._announced_size = largest
        # Flower fills in who sends it.
        empty = Message(RecordDict(), node, _MESSAGE_TYPES[kind], ttl=lifetime)
        message = make_message(metadata_to_proto(empty.metadata), content, wait, alone=node in self._reads_alone)
        try:
            number = push_message(self._grid, message)
        except Gone as error:
            _log.warning("a message to node %d was not sent: %s", node, error)
            return None
        if number is not None:
            self._unanswered[number] = node, self._clock.monotonic() + lifetime
        return number

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies that are complete; one that cannot be read does not affect the others."""
        messages, now = set(messages), self._clock.monotonic()
        self._delete_unneeded(messages, now)
        self._interrupted &= messages
        for asked in self._announced.keys() - messages:
            self._deleted_from[str(self._announced.pop(asked).tree.object_id)] = now + _UPLOAD_SECONDS
        # The SuperLink forgets a message whose reply was announced: asked again, it would report an error.
        if others := messages - self._announced.keys():
            self._announced |= replies_to(self._grid, others)
        found = [reply for asked, transfer in self._announced.items() if (reply := self._pull(asked, transfer))]
        for reply in found:
            announced = self._announced.pop(reply.message)
            self._interrupted.discard(reply.message)
            if announced.is_record_alone and not reply.lost:
                self._reads_alone.add(reply.node)
            else:
                self._reads_alone.discard(reply.node)
            if reply.lost:
                self._deleted_from[str(announced.tree.object_id)] = now
            elif self._unanswered.pop(reply.message, None) is not None:
                self._deleted_from[reply.message] = now
        return found

    def _delete_unneeded(self, messages: set[str], now: float) -> None:
        """Let the SuperLink delete messages that were answered or expired, with the replies that nobody awaits.

        It would keep the models of a grant as long as the server runs, for each grant that a device did not receive.
        """
        expired = [asked for asked, (_, until) in self._unanswered.items() if until <= now and asked not in messages]
        if expired:
            # Asked for an expired message, Flower deletes it, and announces an error as its reply.
            for reply in replies_to(self._grid, expired).values():
                self._deleted_from[str(reply.tree.object_id)] = now
        for asked in expired:
            node, _ = self._unanswered.pop(asked)
            self._reads_alone.discard(node)
            self._deleted_from[asked] = now
        for name in [name for name, at in self._deleted_from.items() if at <= now]:
            delete_message(self._grid, name)
            del self._deleted_from[name]

    def _pull(self, asked: str, transfer: Transfer) -> Reply | None:
        node = int(transfer.metadata.src_node_id)
        if transfer.error is not None:
            return Reply(asked, node, error=transfer.error, lost=True)
        try:
            record = pull_reply(self._grid, transfer, self._largest())
            if record is not None:
                return Reply(asked, node, bytes(read_record(record)[0]))
            # Flower would wait for minutes. Its program was killed; started again, it waits for the message.
            killed = asked in self._interrupted
            return Reply(asked, node, error="it disconnected while it uploaded", lost=True) if killed else None
        except Gone as error:
            return Reply(asked, node, error=str(error), lost=True)
        except InvalidInput as error:
            return Reply(asked, node, error=str(error))
