"""Reading NumPy archives that may be damaged, or declare arrays that they do not have."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ofms.core.typing import AnyArray

# No compressed content is smaller than this share of what it becomes, by the format of zip archives.
_DEFLATE = 1032
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: Path) -> dict[str, AnyArray]:
    """The arrays of an `.npz` file; raises OSError or ValueError if it cannot be read.

    NumPy allocates an array as large as its header declares before it reads it, so that is checked first.
    """
    # Opened here because NumPy leaves a file open that it cannot read.
    with path.open("rb") as content:
        try:
            with zipfile.ZipFile(content) as archive:
                _require_sizes(archive, path.stat().st_size)
            content.seek(0)
            with np.load(content, allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError):
            raise
        except Exception as error:  # NumPy and zipfile raise many kinds for damaged content.
            raise ValueError(f"it is not an .npz file: {error}") from None


def _require_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Reject members that are no arrays, or declare more bytes than the file can have."""
    for member in archive.infolist():
        if member.file_size > _DEFLATE * min(member.compress_size, size):
            raise ValueError(f"{member.filename} is larger than its content")
        with archive.open(member) as content:
            if not member.filename.endswith(".npy") or _declared_bytes(content) > member.file_size:
                raise ValueError(f"{member.filename} is not an array, or incomplete")


def _declared_bytes(content: IO[bytes]) -> int:
    """The number of bytes that the header of an array declares."""
    version = np.lib.format.read_magic(content)
    if version not in _HEADERS:
        raise ValueError(f"it has an array of format {version}")
    shape, _, dtype = _HEADERS[version](content)
    if dtype.hasobject or any(length < 0 for length in shape):
        raise ValueError("it has an array of objects, or of negative length")
    return math.prod(shape) * dtype.itemsize
