"""Letters: what crosses between a device and its server, as bytes. Plain arrays and JSON; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from ofms.core.errors import InvalidInput
from ofms.core.messages import Message
from ofms.core.typing import AnyArray

PROTOCOL = 2


@dataclass(frozen=True, eq=False)
class Envelope:
    """A kind, plain values, and arrays by name."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, AnyArray] = field(default_factory=dict)

    def part(self, name: str) -> dict[str, AnyArray]:
        """The arrays of one part of the letter, without its name."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): array for key, array in self.arrays.items() if key.startswith(prefix)}

    def by_model(self, name: str) -> dict[int, dict[str, AnyArray]]:
        """The arrays of one part by model and by their own names; their keys are `name.model.own`."""
        found: dict[int, dict[str, AnyArray]] = {}
        for key, array in self.part(name).items():
            model, _, own = key.partition(".")
            found.setdefault(int(model), {})[own] = array
        return found


def encode(letter: Envelope) -> bytes:
    """A letter as bytes."""
    head = msgspec.json.encode({"protocol": PROTOCOL, "kind": letter.kind, "values": letter.values}).decode()
    # The format has no arrays of no dimension: they travel with one.
    arrays = {name: np.ascontiguousarray(np.atleast_1d(array)) for name, array in letter.arrays.items()}
    return safetensors.numpy.save(arrays, {"ofms": head})


def decode(content: bytes) -> Envelope:
    """A letter from bytes, or a refusal."""
    try:
        arrays = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        head = msgspec.json.decode(content[8 : 8 + size])["__metadata__"]["ofms"]
        values = msgspec.json.decode(head.encode(), type=dict[str, Any])
        protocol, kind, said = values["protocol"], str(values["kind"]), dict(values["values"])
    except (safetensors.SafetensorError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput("letter", f"{len(content)} bytes", f"it is not whole ({type(error).__name__})") from None
    require_protocol(protocol)
    return Envelope(kind, said, arrays)


def require_protocol(protocol: object) -> None:
    """Refuse what another version of the protocol wrote."""
    if protocol != PROTOCOL:
        raise InvalidInput("letter", f"protocol {protocol}", f"this is protocol {PROTOCOL}; upgrade the older side")


def message_arrays(message: Message, name: str) -> dict[str, AnyArray]:
    """A message's arrays, as one part of a letter; its exchange travels among the values."""
    return {f"{name}.{key}": array for key, array in message.to_arrays().items() if array.ndim}
