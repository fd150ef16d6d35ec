"""Losses and scores of the two tasks."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ofms.core.typing import AnyArray, Floats
from ofms.models.dictionary import Task


def sample_losses(outputs: torch.Tensor, targets: torch.Tensor, task: Task) -> torch.Tensor:
    """The loss of each sample: cross-entropy, or the squared error.

    >>> sample_losses(torch.tensor([[2.0], [0.5]]), torch.tensor([1.0, 0.5]), "regression")
    tensor([1., 0.])
    """
    if task == "classification":
        return nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (outputs.squeeze(-1) - targets).square()


def scores(predictions: AnyArray, targets: AnyArray, task: Task) -> Floats:
    """The score of each sample, which the metric averages: whether the class is right, or the squared error.

    The last axis of `predictions` holds the classes, or the one value; leading axes follow `targets`.

    >>> scores(np.array([[0.2, 0.8]]), np.array([1]), "classification")
    array([1.])
    """
    if task == "classification":
        right: Floats = (predictions.argmax(axis=-1) == targets).astype(np.float64)
        return right
    errors: Floats = np.square(predictions[..., 0].astype(np.float64) - targets)
    return errors


def softmax(logits: AnyArray) -> AnyArray:
    """Probabilities along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: AnyArray = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities
