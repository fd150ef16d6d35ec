"""The clients' samples as tensors on a device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from ofms.core.typing import AnyArray, Floats, Integers
from ofms.data.stream import Stream

# Samples per forward and backward pass: as many as fit the cache.
_IMAGES_AT_ONCE = 64
_VECTORS_AT_ONCE = 1024


class Samples:
    """[N, T, ...] inputs and [N, T] targets; `targets` is a NumPy array of the targets in main memory."""

    def __init__(self, stream: Stream, dtype: torch.dtype, device: torch.device) -> None:
        self.task, self.targets, self.device, self.dtype = stream.task, stream.y, device, dtype
        self.x = torch.from_numpy(np.ascontiguousarray(stream.x)).to(device=device, dtype=dtype)
        kind = torch.int64 if stream.task == "classification" else dtype
        self.y = torch.from_numpy(np.ascontiguousarray(stream.y)).to(device=device, dtype=kind)
        self.images = self.x.ndim == 5

    @property
    def at_once(self) -> int:
        return _IMAGES_AT_ONCE if self.images else _VECTORS_AT_ONCE

    def of(self, rows: Integers, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some clients in some rounds."""
        place = torch.from_numpy(rows).to(self.device)
        return self.x[place, first:stop], self.y[place, first:stop]

    def at(self, rows: Integers, rounds: Integers) -> torch.Tensor:
        """[M, ...] inputs of M pairs of client and round."""
        return self.x[torch.from_numpy(rows).to(self.device), torch.from_numpy(rounds).to(self.device)]

    def weights(self, values: Floats) -> torch.Tensor:
        """Weights of samples or clients, with the dtype and device of the inputs."""
        return torch.from_numpy(values).to(device=self.device, dtype=self.dtype)

    def pieces(self, samples: torch.Tensor) -> Iterable[torch.Tensor]:
        """Split samples into pieces that fit the cache, images in the memory layout that fast kernels need."""
        return self._laid_out(samples.split(self.at_once))

    def even_pieces(self, samples: torch.Tensor) -> Iterable[torch.Tensor]:
        """The same in pieces of nearly equal size: a small one takes longer per sample."""
        return self._laid_out(samples.tensor_split(-(-len(samples) // self.at_once)))

    def _laid_out(self, pieces: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
        if not self.images:
            return pieces
        return (
            part.contiguous(memory_format=torch.channels_last if part.ndim == 4 else torch.contiguous_format)
            for part in pieces
        )


def to_array(tensor: torch.Tensor) -> AnyArray:
    """A tensor as a NumPy array in main memory."""
    array: AnyArray = tensor.detach().cpu().numpy()
    return array
