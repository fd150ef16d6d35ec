"""What a client learns from a sample: the loss of each model relative to the pool, at the price of the draw.

With c the pool of all models under the client's weights p, and D the divergence of the loss from its tangent at c,

    r(k) = ⟨∇L(c), φ_k - c⟩ + λ D(φ_k, c),   λ = min(1, noise / Σ_k p_k D(φ_k, c)),

where noise = E[L(prediction)] - L(c) is what drawing a few models for those that do not fit costs in expectation. Then
⟨p, r⟩ ≥ noise, so regret on r bounds the regret of the predictions against the best model and against mixtures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.pooling import divergence, pool_gradient
from ofms.core.typing import AnyArray, Flags, Floats

_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Vote:
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


def relative_losses(outputs: Floats, targets: AnyArray, vote: Vote, *, plain: bool = False) -> Floats:
    """[M, K] from [M, K, C] outputs on M samples; NaN for models whose output is not known (NaN).

    p is restricted to the known models and normalised, so that a sample counts before all models were evaluated on it.
    `plain` sets λ = 1: then r is the difference of the losses of model and pool.
    """
    known = ~np.isnan(outputs[..., 0])
    outputs = np.where(known[..., None], outputs, 0.0)
    recorded = np.where(known, vote.weights, 0.0)
    uniform = known / known.sum(axis=1, keepdims=True)
    weights = np.where(recorded.sum(axis=1, keepdims=True) > _NOTHING, _shares(recorded), uniform)
    centre = _pool(weights, outputs)
    divergences = divergence(outputs, centre[:, None])
    spread = (weights * np.where(known, divergences, 0.0)).sum(axis=1)
    price = np.minimum(1.0, _noise(outputs, recorded, vote) / np.where(spread > 1e-15, spread, np.inf))
    price = np.ones_like(price) if plain else price
    slopes = ((outputs - centre[:, None]) * pool_gradient(centre, targets)[:, None]).sum(axis=-1)
    return np.where(known, slopes + price[:, None] * divergences, np.nan)


def _noise(outputs: Floats, recorded: Floats, vote: Vote) -> Floats:
    """[M] E[L(prediction)] - L(c) over the draw, bounded by the case of one draw for all of the others."""
    others = np.where(vote.certain, 0.0, recorded)
    shares = _shares(others)
    inside = recorded - others
    mass = inside.sum(axis=1)
    certain, far = _pool(_shares(inside), outputs), _pool(shares, outputs)
    rho = np.where(mass > 0, vote.outside, 1.0)[:, None]
    centre = (1 - rho) * certain + rho * far
    share = (rho[:, 0] / vote.thinning)[:, None, None]
    thinned = (vote.thinning < 1)[:, None, None]
    whole = centre[:, None] + vote.outside[:, None, None] * (outputs - far[:, None])
    drawn = np.where(thinned, (1 - share) * certain[:, None] + share * outputs, whole)
    noise = vote.thinning * (shares * divergence(drawn, centre[:, None])).sum(axis=1)
    noise += (1 - vote.thinning) * divergence(certain, centre)
    return np.where((others.sum(axis=1) > _NOTHING) & (vote.outside > 0), noise, 0.0)


def _shares(weights: Floats) -> Floats:
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def _pool(weights: Floats, outputs: Floats) -> Floats:
    """[M, C] the pool of [M, K, C] outputs."""
    pools: Floats = np.einsum("mk,mkc->mc", weights, outputs)
    return pools
