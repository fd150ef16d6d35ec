"""Choose the compute of a simulation: the only place that depends on the machine."""

from __future__ import annotations

import torch

from ofms.compute.cached import make_cached_compute
from ofms.compute.protocol import Compute
from ofms.compute.shards import Block
from ofms.compute.threads import ThreadedCompute
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary


def make_compute(
    dictionary: Dictionary,
    stream: Stream,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    cached: bool = False,
    progress: bool = False,
    block: Block | None = None,
) -> Compute:
    """Make a compute for the models of a dictionary and the clients of a stream.

    Parameters
    ----------
    cached
        Use cached outputs if they are not too large; only for runs that never change the dictionary.
    progress
        Whether to show the progress of computing the outputs to cache.
    block
        The shards of this process: it computes for their clients alone; by default for all clients of the stream.
    """
    if cached:
        found = make_cached_compute(dictionary, stream, dtype=dtype, device=device, workers=workers, progress=progress)
        if found is not None:
            return found if block is None else found.of_block(stream, block)
    own = stream if block is None else stream.rows(block.clients)
    return ThreadedCompute(dictionary, own, dtype=dtype, device=device, workers=workers, block=block)
