"""Bytes in parts that are sent one after another, and fields of protocol buffers that are encoded around a content.

Joined, or set in a message of protocol buffers, a content would be in memory several times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 2**16
# Of fields with a length: https://protobuf.dev/programming-guides/encoding/
_WIRE_TYPE = 2


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
    return _varint(number << 3 | _WIRE_TYPE) + _varint(length)


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the highest bit of a byte says that another one follows."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
