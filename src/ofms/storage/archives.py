"""NumPy's archives of arrays, as they may be found on a disk."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from ofms.core.typing import AnyArray


def read_npz(path: Path) -> dict[str, AnyArray]:
    """The arrays of a `.npz` file; OSError or ValueError where it cannot be read."""
    # Opened here: NumPy leaves a file open that it cannot read.
    with path.open("rb") as content:
        try:
            with np.load(content, allow_pickle=False) as file:
                return dict(file)
        except (TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"it is no .npz file: {error}") from None
