"""Arrays by name as the bytes of a safetensors file, and back. Imports no PyTorch.

The library itself copies a content twice when it writes it, and once, always, when it reads it. On a device, each copy
is as large as all models that it holds. So this module writes the bytes once, and reads arrays that may share them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.storage.typed import from_json

METADATA = "__metadata__"
_LENGTH, _ALIGNMENT = 8, 8
_KINDS = {"BOOL": "?", "F16": "<f2", "F32": "<f4", "F64": "<f8"} | {
    f"{letter}{8 * size}": f"<{kind}{size}" for letter, kind in (("I", "i"), ("U", "u")) for size in (1, 2, 4, 8)
}
_TYPES = {name: np.dtype(kind) for name, kind in _KINDS.items()}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_MALFORMED = (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError)

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
# NumPy 1 has at most 32.
_Shape = Annotated[list[_Size], msgspec.Meta(max_length=32)]


class _Entry(msgspec.Struct):
    """An array in a header: its type, its shape, and where its bytes begin and end."""

    dtype: str
    shape: _Shape
    data_offsets: tuple[_Size, _Size]


class _Metadata(msgspec.Struct):
    """The metadata of a header; entries of arrays are skipped."""

    metadata: dict[str, str] = msgspec.field(name=METADATA, default_factory=dict)


def encode_arrays(arrays: Mapping[str, AnyArray], metadata: Mapping[str, str]) -> bytes:
    """Encode real and boolean arrays; their bytes are copied once."""
    return b"".join(encoded_parts(arrays, metadata))


def encoded_parts(arrays: Mapping[str, AnyArray], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """The parts of encoded arrays, which follow one another; they share the memory of the arrays."""
    whole = {name: np.require(array, array.dtype.newbyteorder("<"), "C") for name, array in arrays.items()}
    # The largest types first, so that each array begins at a multiple of its type's size.
    order = sorted(whole, key=lambda name: (-whole[name].itemsize, name))
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name in order:
        begin, end = end, end + whole[name].nbytes
        entries[name] = _Entry(_NAMES[whole[name].dtype], list(whole[name].shape), (begin, end))
    header = msgspec.json.encode(entries)
    header += b" " * (-len(header) % _ALIGNMENT)
    data = [whole[name].reshape(-1).view(np.uint8).data for name in order]
    return [len(header).to_bytes(_LENGTH, "little"), header, *data]


def decode_arrays(content: bytes | memoryview) -> dict[str, AnyArray]:
    """Decode arrays by name, with memory of their own; reject an incomplete or malformed file.

    >>> decode_arrays(encode_arrays({"a": np.arange(3)}, {}))
    {'a': array([0, 1, 2])}
    """
    return {name: array.copy() for name, array in shared_arrays(content).items()}


def shared_arrays(content: bytes | memoryview) -> dict[str, AnyArray]:
    """Decode arrays by name that cannot be written and share the memory of the content, all of which they keep.

    They may begin at any address; a copy begins at a multiple of its type's size.
    """
    try:
        header, data = _split(content)
        entries = from_json(header, dict[str, msgspec.Raw])
        read_metadata(content)
        entries.pop(METADATA, None)
        found = {name: from_json(bytes(each), _Entry) for name, each in entries.items()}
        _require_complete(found, len(data))
        return {name: _array(entry, data) for name, entry in found.items()}
    except _MALFORMED as error:
        shown = f"{len(content)} bytes"
        raise InvalidInput("tensors", shown, f"not a complete safetensors file ({_first_line(error)})") from None


def read_metadata(content: bytes | memoryview) -> dict[str, str]:
    """Decode only the metadata; raises `ValueError` or `RecursionError`."""
    return from_json(_split(content)[0], _Metadata).metadata


def _split(content: bytes | memoryview) -> tuple[memoryview, memoryview]:
    """The JSON header of a file, which begins with its length, and the bytes of its arrays."""
    whole = memoryview(content)
    end = _LENGTH + int.from_bytes(whole[:_LENGTH], "little")
    if len(whole) < end:
        raise ValueError("its header is incomplete")
    return whole[_LENGTH:end], whole[end:]


def _require_complete(entries: Mapping[str, _Entry], size: int) -> None:
    """ValueError unless the arrays follow one another, each with as many bytes as its shape needs, up to the end."""
    expected = 0
    for begin, end in sorted(entry.data_offsets for entry in entries.values()):
        if begin != expected or end < begin:
            raise ValueError(f"no array begins at {expected}")
        expected = end
    if expected != size:
        raise ValueError(f"its arrays have {expected} of {size} bytes")
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if math.prod(entry.shape) * _type_of(entry).itemsize != end - begin:
            raise ValueError(f"{name[:40]!r} has {end - begin} bytes")


def _array(entry: _Entry, data: memoryview) -> AnyArray:
    begin, end = entry.data_offsets
    array: AnyArray = np.frombuffer(data[begin:end], dtype=_type_of(entry)).reshape(entry.shape)
    array.flags.writeable = False
    return array


def _type_of(entry: _Entry) -> np.dtype[Any]:
    if entry.dtype not in _TYPES:
        raise ValueError(f"arrays of {entry.dtype[:40]!r}; they must hold real numbers or booleans")
    return _TYPES[entry.dtype]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
