"""Losses and scores of the two tasks, in NumPy."""

from __future__ import annotations

import numpy as np

from ofms.core.typing import AnyArray, Floats
from ofms.models.index import Task


def output_losses(outputs: AnyArray, targets: AnyArray, task: Task) -> AnyArray:
    """[n] the loss of each sample of [n, C] outputs, in their precision: cross-entropy, or the squared error.

    >>> output_losses(np.array([[2.0], [0.5]]), np.array([1.0, 0.5]), "regression")
    array([1., 0.])
    """
    losses: AnyArray
    with np.errstate(over="ignore", invalid="ignore"):
        if task == "classification":
            shifted = outputs - outputs.max(axis=1, keepdims=True)
            own = np.take_along_axis(shifted, targets[:, None], axis=1)[:, 0]
            losses = np.log(np.exp(shifted).sum(axis=1)) - own
        else:
            losses = np.square(outputs[:, 0] - targets)
    return losses


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
    with np.errstate(over="ignore"):
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
