"""The network as the coordinator sees it: connected nodes, send, receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

# A welcome is answered by a request for its exchange, a grant by a report on its exchange and a request for the next.
Kind = Literal["join", "exchange"]


@dataclass(frozen=True)
class Reply:
    """The outcome of a message.

    Attributes
    ----------
    message
        The id of the message.
    node
        The node that replied.
    content
        The encoded envelope of the reply; None if there is none.
    error
        Why there is no reply.
    lost
        Whether the message or its reply was lost in transit, so that it may be resent.
    """

    message: str
    node: int
    content: bytes | None = None
    error: str = ""
    lost: bool = False


class Transport(Protocol):
    """Carries encoded envelopes to nodes and back, unchanged."""

    def nodes(self) -> Mapping[bytes, int]:
        """The connected nodes: id by public key (PEM)."""
        ...

    def send(self, node: int, kind: Kind, content: bytes, *, wait: float, lifetime: float) -> str | None:
        """Send a message; return its id, or None if it was not accepted.

        Parameters
        ----------
        wait
            Seconds that the node waits for the device's answer.
        lifetime
            Seconds until the message expires; later replies are ignored.
        """
        ...

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies received so far to these messages, each returned once."""
        ...


class Clock(Protocol):
    """The part of the `time` module that scheduling uses."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
