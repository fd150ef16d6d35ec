"""Exponential weights of many clients, who come last in all arrays: NumPy is fastest along the last axis."""

from __future__ import annotations

import math

import numpy as np

from ofms.core.typing import Floats

# NumPy is slow where exponentials underflow.
_LEAST_EXPONENT = -700.0
_SMALL = 1e-280


def mixed(above: Floats, least: Floats, rates: Floats, out: Floats | None = None) -> Floats:
    """[..., N] the mixed losses -1/η ln Σ_k exp(-η S_k) for [..., K, N] sums less the least of them.

    `out` is overwritten.

    >>> mixed(np.zeros((4, 1)), np.array([1.0]), np.array([math.log(2)])).tolist()
    [-1.0]
    """
    losses: Floats = least - np.log(_exponentials(above, rates, out).sum(axis=-2)) / rates
    return losses


def softmax(above: Floats, rates: Floats, out: Floats | None = None) -> Floats:
    """[..., K, N] the weights exp(-η S), normalised, for sums up to a constant, of which the least is 0."""
    values = _exponentials(above, rates, out)
    # What would underflow is 0, however the machine rounds the least exponential; larger ones absorb the difference.
    if values.min(initial=1.0) < _SMALL:
        values -= 2 * math.exp(_LEAST_EXPONENT)
        np.maximum(values, 0.0, out=values)
    values /= values.sum(axis=-2)[..., None, :]
    return values


def _exponentials(above: Floats, rates: Floats, out: Floats | None) -> Floats:
    values = np.empty_like(above) if out is None else out
    # The first client's sums are a cheap first test.
    if not above[..., :1].any() and not above.any():
        values.fill(1.0)
        return values
    np.multiply(above, -rates[..., None, :], out=values)
    np.maximum(values, _LEAST_EXPONENT, out=values)
    return np.exp(values, out=values)
