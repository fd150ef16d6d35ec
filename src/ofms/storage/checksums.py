"""Checksums of files that must not be read if a disk changed them: safetensors has none.

A file of an envelope ends with a mark and the BLAKE2 hash of what is before. Files of earlier versions have neither; a
damaged mark makes the file unreadable, because no envelope has bytes after its end.
"""

from __future__ import annotations

import hashlib

_MARK, _SIZE = b"ofms-sum", 16


def checksum(*parts: bytes | memoryview) -> str:
    """The checksum of a file from its parts, in hexadecimal digits."""
    found = hashlib.blake2b(digest_size=_SIZE)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def with_checksum(content: bytes) -> bytes:
    """A file's content, followed by its checksum."""
    return content + ending(content)


def ending(content: bytes) -> bytes:
    """What follows a file's content, to be written after it."""
    return _MARK + bytes.fromhex(checksum(content))


def without_checksum(content: bytes) -> bytes:
    """The content of a file without its checksum; ValueError if it is not the one of the content.

    >>> without_checksum(with_checksum(b"abc"))
    b'abc'
    >>> without_checksum(b"Abc" + with_checksum(b"abc")[3:])
    Traceback (most recent call last):
    ...
    ValueError: its content changed after it was written
    """
    end = len(content) - len(_MARK) - _SIZE
    if end < 0 or content[end : end + len(_MARK)] != _MARK:
        return content
    require_checksum(content[:end], content[end + len(_MARK) :].hex())
    return content[:end]


def require_checksum(content: bytes, known: str | None) -> None:
    """ValueError unless a file's content has a known checksum; None for a file of an earlier version."""
    if known is not None and checksum(content) != known:
        raise ValueError("its content changed after it was written")
