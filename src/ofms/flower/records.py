"""Letters as Flower's records and back: plain values, plain arrays, nothing pickled. No PyTorch here."""

from __future__ import annotations

import io
import math
from typing import Any

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.storage.envelope import PROTOCOL, Envelope, require_protocol


def to_record(letter: Envelope) -> RecordDict:
    """A letter as a message's content: each array by itself, so that Flower sends one that many get only once."""
    head = ConfigRecord(
        {"protocol": PROTOCOL, "kind": letter.kind, "values": msgspec.json.encode(letter.values).decode()}
    )
    arrays = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in letter.arrays.items()})
    return RecordDict({"letter": head, "arrays": arrays})


def from_record(content: RecordDict) -> Envelope:
    """The letter in a message, or a refusal; what it says is not trusted, how large its arrays are included."""
    try:
        head = content.config_records["letter"]
        require_protocol(head["protocol"])
        values = msgspec.json.decode(str(head["values"]), type=dict[str, Any])
        arrays = {str(name): _plain(array) for name, array in content.array_records["arrays"].items()}
        return Envelope(str(head["kind"]), values, arrays)
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput("message", type(error).__name__, "it holds no letter") from None


def record_size(content: RecordDict) -> int:
    """The bytes of a message's content: its arrays as they travel, its values as they are written."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    values = sum(len(str(value)) for record in content.config_records.values() for value in record.values())
    return arrays + values


def _plain(array: Array) -> AnyArray:
    """An array of numbers or flags, as long as its content is."""
    stream = io.BytesIO(array.data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(stream)
    content = memoryview(array.data)[stream.tell() :]
    if fortran or kind.kind not in "biuf" or kind.itemsize > 8 or not kind.isnative:
        raise InvalidInput("message", str(kind)[:40], "arrays are of plain numbers or flags")
    if len(content) != math.prod(shape) * kind.itemsize:
        raise InvalidInput("message", str(list(shape))[:40], "an array is not as long as it says")
    return np.frombuffer(content, dtype=kind).reshape(shape)
