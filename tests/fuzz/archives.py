"""NumPy archives from their members, valid or not."""

from __future__ import annotations

import io
import zipfile

import numpy as np

from ofms.core.typing import AnyArray

X, Y = np.arange(24, dtype=np.float32).reshape(2, 4, 3), np.arange(8).reshape(2, 4) % 2


def member(array: AnyArray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def archive(members: dict[str, bytes], *, compressed: bool = False) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def declared(shape: str, descr: str = "'<f4'", order: str = "False") -> bytes:
    """An array whose header declares a shape that its data does not have."""
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


VALID = {"x.npy": member(X), "y.npy": member(Y), "names.npy": member(np.array(["fan", "pump"]))}
