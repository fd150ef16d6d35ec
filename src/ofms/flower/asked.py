"""Which answer of a device a message of the server asks for. Imports no PyTorch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ofms.core.errors import InvalidInput
from ofms.storage.envelope import decode_head
from ofms.storage.typed import from_values

JOIN, EXCHANGE = "query.join", "train.exchange"
# The answer to a welcome requests the exchange that it names; to a grant, it reports on that and requests the next.
_AHEAD = {JOIN: 0, EXCHANGE: 1}
# What an answer repeats: a device may still have one to another deployment, opening or change of the fleet.
_REPEATED = ("deployment", "opening", "changed")


_Exchange = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Asked(msgspec.Struct, frozen=True):
    """The exchange that the answer requests, and the values of the message that it repeats."""

    exchange: int
    same: dict[str, str]

    def is_answered_by(self, answer: bytes) -> bool:
        """Whether a request for the exchange answers this message, and not one of another deployment or opening."""
        try:
            _, values = decode_head(answer)
        except InvalidInput:
            return False  # Damaged; the device writes its next one.
        return all(values.get(key) == value for key, value in self.same.items())


def read_asked(message_type: str, content: bytes | memoryview) -> Asked:
    """Read what a message asks for; reject one that asks for nothing."""
    _, values = decode_head(content)
    try:
        exchange = from_values(values["exchange"], _Exchange) + _AHEAD[message_type]
        return Asked(exchange, {key: str(values[key]) for key in _REPEATED if key in values})
    except (KeyError, TypeError, ValueError) as error:
        reason = f"a field is missing or malformed ({type(error).__name__}: {error})"
        raise InvalidInput("message", _shown(values), reason) from None


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(values)[:40]
