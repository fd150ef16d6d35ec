"""Speed on few cores: workers over models with one intra-op thread each, and the channels-last memory layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def one_thread_per_worker() -> Iterator[None]:
    """Within the block, PyTorch uses one thread per operation, including in threads started there."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def lay_channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions in the memory layout that fast kernels need."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            # Not `contiguous`: with one input channel it has no effect, and the fast kernel is not used.
            parameter.data = torch.empty_like(parameter.data, memory_format=torch.channels_last).copy_(parameter.data)
