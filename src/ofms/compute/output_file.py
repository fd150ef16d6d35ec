"""A file of cached outputs: an `.npy` array, then the SHA-256 of its key and content.

A file is used only if this digest is right: one that is truncated, damaged or of other inputs is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ofms.core.typing import AnyArray
from ofms.storage.files import replacing, write_all

_DIGEST_BYTES = 32
_SUFFIX, _PARTIAL = ".npy", ".part"


def output_file(folder: Path, key: bytes) -> Path:
    """The path of a key's file."""
    return folder / f"{hashlib.sha256(key).hexdigest()[:32]}{_SUFFIX}"


def read_outputs(folder: Path, key: bytes) -> AnyArray | None:
    """A key's array, memory-mapped; None if there is no sound one."""
    path = output_file(folder, key)
    try:
        content = np.memmap(path, np.uint8, mode="r")
        digest = hashlib.sha256(key)
        digest.update(content[:-_DIGEST_BYTES].data)
        if digest.digest() != content[-_DIGEST_BYTES:].tobytes():
            return None
        outputs: AnyArray = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError):
        return None
    # Its time of last use: the files that were not used for longest are removed first.
    with contextlib.suppress(OSError):
        os.utime(path)
    return outputs


def write_outputs(folder: Path, key: bytes, shape: tuple[int, ...], blocks: Iterable[AnyArray], kind: np.dtype) -> None:
    """Write a key's array, given as consecutive blocks of rows; a reader sees the whole file or none.

    The caller holds the key's lock. Raises OSError if there is no room.
    """
    head, digest = io.BytesIO(), hashlib.sha256(key)
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, header)
    with replacing(output_file(folder, key)) as descriptor:
        for content in itertools.chain([head.getbuffer()], (_bytes_of(block, kind) for block in blocks)):
            digest.update(content)
            write_all(descriptor, content)
        write_all(descriptor, digest.digest())


def _bytes_of(block: AnyArray, kind: np.dtype) -> memoryview:
    return np.ascontiguousarray(block, dtype=kind).reshape(-1).view(np.uint8).data


def make_room(folder: Path, needed: int, limit: int) -> None:
    """Remove the files that were not used for longest, until `needed` more bytes leave the folder within `limit`."""
    found = []
    for path in folder.iterdir():
        # Another process may remove one at the same time.
        with contextlib.suppress(FileNotFoundError):
            if path.suffix in (_SUFFIX, _PARTIAL):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total + needed <= limit:
            break
        path.unlink(missing_ok=True)
        total -= size
