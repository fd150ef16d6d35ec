"""Choose the compute of a simulation: the only place that depends on the machine."""

from __future__ import annotations

import torch

from ofms.compute.protocol import Compute
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
) -> Compute:
    """Make a compute for the models of a dictionary and the clients of a stream."""
    return ThreadedCompute(dictionary, stream, dtype=dtype, device=device, workers=workers)
