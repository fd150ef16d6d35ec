"""One update from several, each a mapping of tensors, by a function of the array of all their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ofms.compute.protocol import Tensors
from ofms.core.typing import AnyArray


def combine_tensors(updates: Sequence[Tensors], combine: Callable[[AnyArray], AnyArray]) -> Tensors:
    """One update of a model from several, by a function of [m, P] numbers that returns [P]."""
    first = updates[0]
    rows = torch.stack([torch.cat([each[name].flatten() for name in first]) for each in updates])
    whole = torch.from_numpy(combine(rows.numpy()))
    pieces = whole.split([tensor.numel() for tensor in first.values()])
    return {name: each.view(first[name].shape) for name, each in zip(first, pieces, strict=True)}
