"""The network as the coordinator sees it: who is connected, send, receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

# A welcome is answered by a request for its exchange, a grant by a report on its exchange and a request for the next.
Kind = Literal["join", "exchange"]


@dataclass(frozen=True)
class Reply:
    """What became of a message.

    Attributes
    ----------
    message
        The id of the message.
    node
        Who replied.
    content
        The encoded envelope of the reply; None where there is none.
    error
        Why there is none.
    lost
        Whether that is because the message or its reply was lost on the way, so that it may be sent again.
    """

    message: str
    node: int
    content: bytes | None = None
    error: str = ""
    lost: bool = False


class Transport(Protocol):
    """Carries encoded envelopes to nodes and back, as they are."""

    def nodes(self) -> Mapping[bytes, int]:
        """The connected nodes: id by public key (PEM)."""
        ...

    def send(self, node: int, kind: Kind, content: bytes, *, wait: float, lifetime: float) -> str | None:
        """Send a message; its id, or None where it was not accepted.

        Parameters
        ----------
        wait
            For how many seconds the node waits for the device's answer.
        lifetime
            After how many seconds nobody waits for the reply any more.
        """
        ...

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies to some messages that have come so far, each returned once."""
        ...


class Clock(Protocol):
    """Time as the `time` module offers it."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
