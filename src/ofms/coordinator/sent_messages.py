"""Messages of the server that await their replies, and grants that were lost on their way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ofms.coordinator.transport import Clock, Kind, Reply, Transport


@dataclass(frozen=True)
class Sent:
    """A message awaiting its reply.

    Attributes
    ----------
    exchange
        That of the grant, or the one that a welcome invites to.
    deadline
        Until when the device may answer.
    until
        When the message expires or, if it was lost, when it may be resent.
    """

    client: int
    node: int
    kind: Kind
    content: bytes
    exchange: int
    sent: float
    deadline: float
    until: float


class SentMessages:
    """By id: those that await a reply; and lost grants, to be resent if their nodes reconnect before the deadline."""

    def __init__(self, transport: Transport, clock: Clock, travel: float) -> None:
        self._transport, self._clock, self._travel = transport, clock, travel
        self.waiting: dict[str, Sent] = {}
        self.lost: list[Sent] = []

    def send(self, client: int, node: int, kind: Kind, content: bytes, exchange: int, wait: float) -> Sent | None:
        """Send a message; None if the transport rejected it."""
        lifetime, now = wait + self._travel, self._clock.monotonic()
        message = self._transport.send(node, kind, content, wait=wait, lifetime=lifetime)
        sent = Sent(client, node, kind, content, exchange, now, now + wait, now + lifetime)
        if message is None:
            return None
        self.waiting[message] = sent
        return sent

    def lose(self, sent: Sent, again: float) -> None:
        """Keep a lost grant, to resend it from a time on."""
        self.lost.append(replace(sent, until=again))

    def replies(self) -> list[tuple[Sent, Reply]]:
        """The replies received, each with its message."""
        found = self._transport.receive(list(self.waiting)) if self.waiting else []
        return [(self.waiting.pop(reply.message), reply) for reply in found if reply.message in self.waiting]

    def drop_expired(self) -> None:
        """Forget messages that expired."""
        now = self._clock.monotonic()
        self.waiting = {message: sent for message, sent in self.waiting.items() if now < sent.until}

    def forget(self, clients: Iterable[int]) -> None:
        """Forget the messages to devices."""
        gone = set(clients)
        self.waiting = {message: sent for message, sent in self.waiting.items() if sent.client not in gone}
        self.lost = [sent for sent in self.lost if sent.client not in gone]

    def awaiting(self, *, exchange: int | None = None) -> set[int]:
        """The devices whose answers to grants may still come: of an exchange, or of any."""
        sent = [each for each in self.waiting.values() if each.kind == "exchange"] + self.lost
        return {each.client for each in sent if exchange is None or each.exchange == exchange}
