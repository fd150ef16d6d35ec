"""A model's tensors as the bytes of a safetensors file, for disk and messages."""

from __future__ import annotations

from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray


def encode_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Encode tensors by name."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def tensors_of(arrays: Mapping[str, AnyArray], prefix: str) -> dict[str, torch.Tensor]:
    """The arrays whose names start with a prefix, as tensors that share their memory."""
    some = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return {name: torch.from_numpy(array) for name, array in some.items()}


def decode_tensors(content: bytes) -> dict[str, torch.Tensor]:
    """Decode tensors by name; reject an incomplete or malformed safetensors file."""
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise InvalidInput("tensors", f"{len(content)} bytes", f"not a complete safetensors file ({error})") from None
