"""What makes networks fast on few cores: one intra-op thread a worker, workers over models; channels last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def one_thread_a_worker() -> Iterator[None]:
    """Within it, PyTorch uses one thread an operation, also in threads that are started meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def lay_channels_last(module: nn.Module) -> None:
    """Move the weights of convolutions into the memory layout of the fast kernels."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            # Not `contiguous`: it leaves one input channel as it is, and the fast kernel is not taken then.
            parameter.data = torch.empty_like(parameter.data, memory_format=torch.channels_last).copy_(parameter.data)
