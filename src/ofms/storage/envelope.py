"""The message envelope: messages between a device and its server, as bytes. Arrays and JSON; nothing is unpickled.

An encoded envelope is a safetensors file whose metadata holds the protocol version, the kind and plain values. The
sender encodes it once; everything between sender and receiver forwards the bytes unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ofms.core.errors import InvalidInput
from ofms.core.messages import Message
from ofms.core.typing import AnyArray
from ofms.storage.arrays import decode_arrays, encoded_parts, read_metadata, shared_arrays
from ofms.storage.typed import from_json

PROTOCOL = 2
_HEAD = "ofms"
_MALFORMED = (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, eq=False)
class Envelope:
    """A kind, plain values, and arrays by name."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, AnyArray] = field(default_factory=dict)

    def part(self, name: str) -> dict[str, AnyArray]:
        """The arrays under `name.`, without that prefix."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): array for key, array in self.arrays.items() if key.startswith(prefix)}

    def by_model(self, name: str) -> dict[int, dict[str, AnyArray]]:
        """The arrays under `name.` by model and tensor; their keys are `name.model.tensor`."""
        found: dict[int, dict[str, AnyArray]] = {}
        for key, array in self.part(name).items():
            model, _, tensor = key.partition(".")
            found.setdefault(int(model), {})[tensor] = array
        return found


def encode(envelope: Envelope) -> bytes:
    """Encode an envelope as bytes."""
    return b"".join(parts_of(envelope))


def parts_of(envelope: Envelope) -> list[bytes | memoryview]:
    """The parts of an encoded envelope, which follow one another; they share the memory of its arrays."""
    head = msgspec.json.encode({"protocol": PROTOCOL, "kind": envelope.kind, "values": envelope.values}).decode()
    return encoded_parts(envelope.arrays, {_HEAD: head})


def decode(content: bytes | memoryview, *, shared: bool = False) -> Envelope:
    """Decode an envelope; reject anything else. Nothing in it is trusted.

    `shared` arrays cannot be written and share the memory of the content, all of which each of them keeps.
    """
    kind, values = decode_head(content)
    try:
        arrays = shared_arrays(content) if shared else decode_arrays(content)
    except InvalidInput as error:
        raise _malformed(content, error.remedy) from None
    return Envelope(kind, values, arrays)


def decode_head(content: bytes | memoryview) -> tuple[str, dict[str, Any]]:
    """Decode only kind and values; arrays are skipped."""
    try:
        head = from_json(read_metadata(content)[_HEAD], dict[str, Any])
        protocol, kind, values = head["protocol"], str(head["kind"]), dict(head["values"])
    except _MALFORMED as error:
        raise _malformed(content, type(error).__name__) from None
    require_protocol(protocol)
    return kind, values


def require_protocol(protocol: object, own: int = PROTOCOL) -> None:
    """Reject another version of the protocol."""
    if protocol != own:
        shown = f"protocol {str(protocol)[:40]}"
        raise InvalidInput("message", shown, f"this is protocol {own}; upgrade the older side")


def require_array(part: Mapping[str, AnyArray], name: str, shape: tuple[int, ...], kind: str) -> AnyArray:
    """An array of a message; rejected unless it has the shape and the kind of dtype."""
    array = part.get(name)
    if array is None or array.shape != shape or array.dtype.kind != kind:
        found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise InvalidInput("message", f"{name} {found}", f"expected {list(shape)} of kind {kind}")
    return array


def message_arrays(message: Message, name: str) -> dict[str, AnyArray]:
    """A message's arrays under `name.`; scalars, such as its exchange, are sent as values."""
    return {f"{name}.{key}": array for key, array in message.to_arrays().items() if array.ndim}


def _malformed(content: bytes | memoryview, reason: str) -> InvalidInput:
    return InvalidInput("message", f"{len(content)} bytes", f"it is not a complete envelope ({reason})")
