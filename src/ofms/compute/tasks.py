"""Losses of the two tasks, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from ofms.models.index import Task


def sample_losses(outputs: torch.Tensor, targets: torch.Tensor, task: Task) -> torch.Tensor:
    """The loss of each sample: cross-entropy, or the squared error.

    >>> sample_losses(torch.tensor([[2.0], [0.5]]), torch.tensor([1.0, 0.5]), "regression")
    tensor([1., 0.])
    """
    if task == "classification":
        return nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (outputs.squeeze(-1) - targets).square()


def shifted(outputs: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
    """Outputs with what is added to predictions."""
    return outputs if offset is None else outputs + offset
