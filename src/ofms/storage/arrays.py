"""A model's tensors as NumPy arrays, from the bytes of a safetensors file. Imports no PyTorch."""

from __future__ import annotations

import safetensors.numpy
from safetensors import SafetensorError

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray


def decode_arrays(content: bytes) -> dict[str, AnyArray]:
    """Decode arrays by name; reject an incomplete or malformed safetensors file."""
    try:
        return safetensors.numpy.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput("tensors", f"{len(content)} bytes", f"not a complete safetensors file ({error})") from None
