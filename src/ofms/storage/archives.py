"""Reading NumPy archives that may be damaged."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from ofms.core.typing import AnyArray


def read_npz(path: Path) -> dict[str, AnyArray]:
    """The arrays of an `.npz` file; raises OSError or ValueError if it cannot be read."""
    # Opened here because NumPy leaves a file open that it cannot read.
    with path.open("rb") as content:
        try:
            with np.load(content, allow_pickle=False) as file:
                return dict(file)
        except (TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"it is not an .npz file: {error}") from None
