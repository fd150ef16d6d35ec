"""Bytes in parts that are sent one after another, and fields of protocol buffers around a content.

Neither is copied: joined, or in a message of protocol buffers, a content would be in memory several times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 2**16
# Of fields with a length: https://protobuf.dev/programming-guides/encoding/
_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


class Parts:
    """Parts of one sequence of bytes. httpx sends one like a file: it asks for the length, then iterates.

    >>> parts = Parts(b"ab", b"c")
    >>> len(parts), bytes(parts)
    (3, b'abc')
    """

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[bytes]:
        """From the beginning each time, so that a request can be repeated."""
        for part in self._parts:
            for first in range(0, len(part), _AT_ONCE):
                yield part[first : first + _AT_ONCE]

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)

    def with_head(self, head: bytes) -> Parts:
        """These parts after another one."""
        return Parts(head, *self._parts)

    def tell(self) -> int:
        return 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The length, for the end; there are no other positions."""
        return len(self) if whence == os.SEEK_END else 0


class Request:
    """A request of protocol buffers whose last field `name` is a content in parts."""

    def __init__(self, request: Any, name: str, content: Parts) -> None:
        self._request, self._head, self._content = request, field_head(request, name, len(content)), content

    def SerializeToString(self, *, deterministic: bool = False) -> Parts:  # noqa: N802
        """As Flower's client calls it; what it returns becomes the content of an HTTP request."""
        head = self._request.SerializeToString(deterministic=deterministic)
        return self._content.with_head(head + self._head)


def field_head(message: Any, name: str, length: int) -> bytes:
    """The bytes before the value of a field with a length: number and type, then the length."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | _WITH_LENGTH) + _varint(length)


def read_fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of an encoded message, with their numbers: values with a length without it, others as encoded.

    Raises `ValueError` if the message is malformed.

    >>> [(number, bytes(value)) for number, value in read_fields(memoryview(b"\\x0a\\x02ab\\x10\\x01"))]
    [(1, b'ab'), (2, b'\\x01')]
    """
    at = 0
    while at < len(content):
        tag, at = _read_varint(content, at)
        kind, begin = tag & 7, at
        if kind == _VARINT:
            _, end = _read_varint(content, at)
        elif kind == _WITH_LENGTH:
            length, begin = _read_varint(content, at)
            end = begin + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            end = begin + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise ValueError(f"a field of type {kind}")
        if end > len(content) or not tag >> 3:
            raise ValueError(f"field {tag >> 3} is incomplete")
        yield tag >> 3, content[begin:end]
        at = end


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next field begins."""
    value = 0
    for place, byte in enumerate(content[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte <= 0x7F:
            return value, at + place + 1
    raise ValueError("a number is incomplete")


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the highest bit of a byte says that another one follows."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
