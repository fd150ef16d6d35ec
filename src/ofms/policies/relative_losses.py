"""What a client learns from a sample: the loss of each model relative to the pool, at the price of the draw.

With c the pool of all models under the client's weights p, and D the divergence of the loss from its tangent at c,

    r(k) = ⟨∇L(c), φ_k - c⟩ + λ D(φ_k, c),   λ = min(1, noise / Σ_k p_k D(φ_k, c)),

where noise = E[L(prediction)] - L(c) is what drawing a few models for those that do not fit costs in expectation. Then
⟨p, r⟩ ≥ noise, so regret on r bounds the regret of the predictions against the best model and against mixtures.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ofms.core.pooling import divergence, pool_gradient
from ofms.core.typing import AnyArray, Flags, Floats

_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Draw:
    """The weights of M samples when they were predicted, and how the prediction was drawn.

    Attributes
    ----------
    weights
        [M, K] p, the expected prediction weights.
    certain
        [M, K] the models that predict for certain.
    outside
        [M] ρ, the weight of the others.
    thinning
        [M] the probability that models of the others are drawn at all.
    """

    weights: Floats
    certain: Flags
    outside: Floats
    thinning: Floats


def relative_losses(outputs: Floats, targets: AnyArray, draw: Draw, *, plain: bool = False) -> Floats:
    """[M, K] from [M, K, C] outputs on M samples; NaN for models whose output is not known (NaN).

    p is restricted to the known models and normalised, so that a sample counts before all models were evaluated on it.
    `plain` sets λ = 1: then r is the difference of the losses of model and pool.
    """
    if targets.size == 1:
        # NumPy adds in another order along an axis that is alone: bits must not depend on what is computed at once.
        twice = Draw(*(getattr(draw, each.name).repeat(2, axis=0) for each in fields(draw)))
        return relative_losses(outputs.repeat(2, axis=0), targets.repeat(2), twice, plain=plain)[:1]
    # In this order, NumPy is fast along samples.
    outputs = np.array(outputs, dtype=np.float64, order="F")
    known = ~np.isnan(outputs[..., 0])
    np.copyto(outputs, 0.0, where=~known[..., None])
    recorded = np.multiply(draw.weights, known, order="F")
    nothing = recorded.sum(axis=1) <= _NOTHING
    weights = _shares(recorded)
    weights[nothing] = _shares(known[nothing].astype(np.float64))
    centre = _pool(weights, outputs)
    divergences = divergence(outputs, centre[:, None])
    gradient = pool_gradient(centre, targets)
    slopes: Floats = _products(outputs, gradient) - (centre * gradient).sum(axis=1)[:, None]
    if not plain:
        spread = (weights * divergences).sum(axis=1)
        price = np.minimum(1.0, _noise(outputs, recorded, draw) / np.where(spread > 1e-15, spread, np.inf))
        divergences *= price[:, None]
    slopes += divergences
    slopes[~known] = np.nan
    return slopes


def _noise(outputs: Floats, recorded: Floats, draw: Draw) -> Floats:
    """[M] E[L(prediction)] - L(c) over the draw, bounded by the case of one draw for all of the others."""
    others = recorded * ~draw.certain
    noise = np.zeros(recorded.shape[0])
    some = np.flatnonzero((others.sum(axis=1) > _NOTHING) & (draw.outside > 0))
    if some.size == 1:
        some = some.repeat(2)
    if some.size:
        drawn = (draw.outside[some], draw.thinning[some])
        noise[some] = _noise_of_draws(outputs[some], (recorded - others)[some], others[some], *drawn)
    return noise


def _noise_of_draws(outputs: Floats, inside: Floats, others: Floats, outside: Floats, thinning: Floats) -> Floats:
    shares = _shares(others)
    certain, far = _pool(_shares(inside), outputs), _pool(shares, outputs)
    rho = np.where(inside.sum(axis=1) > 0, outside, 1.0)
    centre = (1 - rho)[:, None] * certain + rho[:, None] * far
    # A prediction is the drawn model's output, times its share, and a part that does not depend on the draw.
    share = np.where(thinning < 1, rho / thinning, outside)
    fixed = np.where((thinning < 1)[:, None], (1 - share)[:, None] * certain, centre - outside[:, None] * far)
    predictions = outputs * share[:, None, None]
    predictions += fixed[:, None]
    noise: Floats = thinning * (shares * divergence(predictions, centre[:, None])).sum(axis=1)
    noise += (1 - thinning) * divergence(certain, centre)
    return noise


def _shares(weights: Floats) -> Floats:
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def _pool(weights: Floats, outputs: Floats) -> Floats:
    """[M, C] the pool of [M, K, C] outputs."""
    pools: Floats = (weights[..., None] * outputs).sum(axis=1)
    return pools


def _products(outputs: Floats, gradient: Floats) -> Floats:
    """[M, K] of [M, K, C] outputs and [M, C] gradients."""
    products: Floats = (outputs * gradient[:, None]).sum(axis=-1)
    return products
