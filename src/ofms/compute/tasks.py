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


def without_overflow(losses: AnyArray, outputs: AnyArray, targets: AnyArray, task: Task) -> Floats:
    """Losses [...] of outputs [..., C], computed again in double precision where they overflow that of the outputs.

    Bounded, they count as 1.

    >>> outputs = np.array([[2.0**80]], dtype=np.float32)
    >>> without_overflow(np.array([np.inf]), outputs, np.zeros(1), "regression") == 2.0**160
    array([ True])
    """
    found: Floats = losses.astype(np.float64, copy=False)
    broken = ~np.isfinite(found)
    if not broken.any():
        return found
    some, wanted = outputs[broken].astype(np.float64), np.broadcast_to(targets, found.shape)[broken]
    again = np.square(some[:, 0] - wanted)
    if task == "classification":
        shifted = some - some.max(axis=1, keepdims=True)
        again = np.log(np.exp(shifted).sum(axis=1)) - np.take_along_axis(shifted, wanted[:, None], axis=1)[:, 0]
    found = found.copy()
    found[broken] = again
    return found


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
