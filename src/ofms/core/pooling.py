"""Pools of model outputs, and their loss, which is convex in the pool.

An output has one value (regression) or the log-probabilities of C ≥ 2 classes, on the last axis; the pool of several
models is the weighted mean of their outputs. The loss of a pool z is the squared error (z - y)², or the log-loss of
its softmax, ln Σ_c exp z_c - z_y.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers

Pooling = Literal["mean", "log"]

# A share of the uniform distribution in class probabilities: it keeps log-probabilities finite.
SMOOTHING = 1e-3
# The least mean of class probabilities whose logarithm is taken.
LEAST_PROBABILITY = 1e-300
_ROUNDING = 1e-9
# Outputs beyond single precision count as this number.
LARGEST = float(np.finfo(np.float32).max)


def within_range(outputs: AnyArray) -> AnyArray:
    """Outputs [..., C] of networks with the values that are not finite replaced by the largest numbers.

    A value that is no number is replaced by the largest one, a logit by the least: a class that is never predicted.

    >>> within_range(np.array([[np.nan], [-np.inf], [2.0]])).tolist() == [[LARGEST], [-LARGEST], [2.0]]
    True
    >>> within_range(np.array([[np.nan, 1.0]])).tolist() == [[-LARGEST, 1.0]]
    True
    """
    # The sum is a cheap first test; finite outputs whose sum overflows need the second one.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(outputs.sum()) or np.isfinite(outputs).all():
            return outputs
    nothing = LARGEST if outputs.shape[-1] == 1 else -LARGEST
    found: AnyArray = np.clip(np.nan_to_num(outputs, nan=nothing), -LARGEST, LARGEST)
    return found


def out_of_range(outputs: AnyArray) -> Flags:
    """[...] the values of `within_range` that were not finite; none among logits, which are mixed as probabilities.

    >>> out_of_range(np.array([[LARGEST], [2.0]])).tolist()
    [True, False]
    """
    if outputs.shape[-1] > 1:
        return np.zeros(outputs.shape[:-1], dtype=np.bool_)
    return np.abs(outputs[..., 0]) >= LARGEST


class Pool:
    """A weighted sum of outputs [N, n, C], model by model, with weights [N, K] that sum to one.

    Values out of range are left out where other models have weights: one model that overflows does not spoil the
    predictions of the others.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total = np.zeros(shape)
        self._left_out: Floats | None = None

    def add(self, rows: Integers | Flags | slice, weights: Floats, outputs: Floats) -> None:
        """Add [m, n, C] outputs of one model for m clients with [m] weights."""
        weights = weights[:, None, None]
        far = out_of_range(outputs)
        if far.any():
            if self._left_out is None:
                self._left_out = np.zeros((*self._total.shape[:-1], 1))
            self._left_out[rows] += weights * far[..., None]
            outputs = np.where(far[..., None], 0.0, outputs)
        self._total[rows] += weights * outputs

    def value(self) -> Floats:
        """[N, n, C] the pool; the largest number where every model is out of range."""
        if self._left_out is None:
            return self._total
        remaining = 1 - self._left_out
        known = remaining > _ROUNDING
        return np.where(known, self._total / np.where(known, remaining, 1.0), LARGEST)


def with_offset(pools: Floats, offset: Floats | None) -> Floats:
    """[N, n, C] pools with [N, C] offsets added, except to values that are out of range.

    >>> with_offset(np.array([[[1.0], [LARGEST]]]), np.array([[0.5]])).tolist() == [[[1.5], [LARGEST]]]
    True
    """
    if offset is None:
        return pools
    return np.where(out_of_range(pools)[..., None], pools, pools + offset[:, None])


def poolable(outputs: AnyArray) -> Floats:
    """What is pooled of a network's outputs: its value, or the smoothed log-probabilities of its logits.

    >>> np.exp(poolable(np.array([0.0, np.log(3.0)]))).round(5).tolist()
    [0.25025, 0.74975]
    """
    values = outputs.astype(np.float64)
    if values.shape[-1] == 1:
        return values
    values = values - values.max(axis=-1, keepdims=True)
    np.exp(values, out=values)
    values *= (1 - SMOOTHING) / values.sum(axis=-1, keepdims=True)
    values += SMOOTHING / values.shape[-1]
    np.log(values, out=values)
    logs: Floats = values
    return logs


def pool_loss(pools: Floats, targets: AnyArray) -> Floats:
    """The loss of [..., C] pools for targets [...].

    >>> pool_loss(np.array([[0.5], [2.0]]), np.array([0.0, 1.0])).tolist()
    [0.25, 1.0]
    """
    if pools.shape[-1] == 1:
        squares: Floats = np.square(pools[..., 0] - targets)
        return squares
    return log_sum_exp(pools) - _at(pools, targets)


def pool_gradient(pools: Floats, targets: AnyArray) -> Floats:
    """[..., C] the gradient of the loss in the pool.

    >>> pool_gradient(np.zeros((1, 2)), np.array([1])).tolist()
    [[0.5, -0.5]]
    """
    if pools.shape[-1] == 1:
        errors: Floats = 2 * (pools - targets[..., None])
        return errors
    gradient = np.exp(pools - log_sum_exp(pools)[..., None])
    place = targets.astype(np.int64)[..., None]
    np.put_along_axis(gradient, place, np.take_along_axis(gradient, place, axis=-1) - 1, axis=-1)
    return gradient


def divergence(pools: Floats, centre: Floats) -> Floats:
    """D(z, c) = L(z) - L(c) - ⟨∇L(c), z - c⟩ ≥ 0 of pools [..., C] from their centre; it does not depend on the target.

    >>> divergence(np.array([[3.0]]), np.array([[1.0]])).tolist()
    [4.0]
    """
    if pools.shape[-1] == 1:
        squares: Floats = pools[..., 0] - centre[..., 0]
        return np.square(squares, out=squares)
    base = log_sum_exp(centre)
    gradient = np.exp(centre - base[..., None])
    slope = (pools * gradient).sum(axis=-1) - (centre * gradient).sum(axis=-1)
    distances: Floats = np.maximum(log_sum_exp(pools) - base - slope, 0.0)
    return distances


def log_sum_exp(values: Floats) -> Floats:
    """ln Σ exp along the last axis, without overflow."""
    largest = values.max(axis=-1)
    shifted = values - largest[..., None]
    total: Floats = largest + np.log(np.exp(shifted, out=shifted).sum(axis=-1))
    return total


def _at(pools: Floats, targets: AnyArray) -> Floats:
    place = np.broadcast_to(targets.astype(np.int64)[..., None], (*pools.shape[:-1], 1))
    return np.take_along_axis(pools, place, axis=-1)[..., 0]
