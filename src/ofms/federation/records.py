"""Letters as Flower's records and back: plain values, plain arrays, nothing pickled. No PyTorch here."""

from __future__ import annotations

from typing import Any

import msgspec
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ofms.core.errors import InvalidInput
from ofms.device.letters import PROTOCOL, Letter, require_protocol


def to_record(letter: Letter) -> RecordDict:
    """A letter as a message's content: each array by itself, so that Flower sends one that many get only once."""
    head = ConfigRecord(
        {"protocol": PROTOCOL, "kind": letter.kind, "values": msgspec.json.encode(letter.values).decode()}
    )
    arrays = ArrayRecord({name: Array(array) for name, array in letter.arrays.items()})
    return RecordDict({"letter": head, "arrays": arrays})


def from_record(content: RecordDict) -> Letter:
    """The letter in a message, or a refusal."""
    try:
        head = content.config_records["letter"]
        require_protocol(head["protocol"])
        values = msgspec.json.decode(str(head["values"]), type=dict[str, Any])
        arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
        return Letter(str(head["kind"]), values, arrays)
    except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("message", type(error).__name__, f"it holds no letter ({error})") from None
