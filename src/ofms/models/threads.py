"""One intra-op thread for each worker: workers over models beat the default thread pool by far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread_a_worker() -> Iterator[None]:
    """Within it, PyTorch uses one thread an operation, also in threads that are started meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
