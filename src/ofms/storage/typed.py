"""Typed records from JSON, MessagePack and plain values, in any number of threads.

msgspec describes a type when it is first used, in Python code, and attaches the description to the class before it is
complete: two threads that use a type for the first time at once end the process with a segmentation fault. So each type
is described here by one thread, before any uses it. Everything of this package that decodes into records calls these
functions.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_described: set[Any] = set()


def from_json(content: bytes | memoryview | str, kind: type[T]) -> T:
    """Decode JSON; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    _describe(kind)
    return msgspec.json.decode(content, type=kind)


def from_msgpack(content: bytes, kind: type[T]) -> T:
    """Decode MessagePack; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    _describe(kind)
    return msgspec.msgpack.decode(content, type=kind)


def from_values(values: Any, kind: type[T], *, str_keys: bool = False) -> T:
    """Convert plain values; raises `msgspec.ValidationError`. With `str_keys`, all keys of `values` are strings."""
    _describe(kind)
    return msgspec.convert(values, kind, str_keys=str_keys)


def _describe(kind: Any) -> None:
    if kind not in _described:
        with _lock:
            # A decoder describes the type and all types in it.
            msgspec.json.Decoder(kind)
            _described.add(kind)
