"""What a client learns from a sample: the loss of each model relative to the pool, at the price of the draw.

With c the pool of all models under the client's weights p, and D the divergence of the loss from its tangent at c,

    r(k) = ⟨∇L(c), φ_k - c⟩ + λ D(φ_k, c),   λ = min(1, noise / Σ_k p_k D(φ_k, c)),

where noise = E[L(prediction)] - L(c) is what drawing a few models for those that do not fit costs in expectation. Then
⟨p, r⟩ ≥ noise, so regret on r bounds the regret of the predictions against the best model and against mixtures.

What omitting these models costs is L(a) - L(c), a the pool of those that fill the budget: the other way to predict.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ofms.core.pooling import divergence, pool_gradient
from ofms.core.typing import AnyArray, Flags, Floats

_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Draw:
    """The weights of M samples when they were predicted, and how the prediction was drawn or could have been made.

    Attributes
    ----------
    weights
        [M, K] p, the models' weights.
    certain
        [M, K] the models that predict for certain.
    outside
        [M] ρ, the weight of the others.
    filling
        [M, K] the models that predict if the others are omitted.
    """

    weights: Floats
    certain: Flags
    outside: Floats
    filling: Flags


@dataclass(frozen=True, eq=False)
class Relative:
    """Losses relative to that of the pool: [M, K] of the models, and [M, 2] of drawing and of omitting the others."""

    models: Floats
    ways: Floats


def relative_losses(outputs: Floats, targets: AnyArray, draw: Draw, *, plain: bool = False) -> Relative:
    """From [M, K, C] outputs on M samples; NaN for models whose output is not known (NaN).

    p is restricted to the known models and normalised, so that a sample counts before all models were evaluated on it.
    `plain` sets λ = 1: then r is the difference of the losses of model and pool.
    """
    if targets.size == 1:
        # NumPy adds in another order along an axis that is alone: bits must not depend on what is computed at once.
        twice = Draw(*(getattr(draw, each.name).repeat(2, axis=0) for each in fields(draw)))
        both = relative_losses(outputs.repeat(2, axis=0), targets.repeat(2), twice, plain=plain)
        return Relative(both.models[:1], both.ways[:1])
    # Samples come last, here and below: NumPy is fastest along the last axis.
    given = np.ascontiguousarray(outputs.T)
    known, unknown = ~np.isnan(given[0]), given[0] * 0
    # NaN becomes 0: much faster than a choice by flags.
    values = np.add(np.fmax(given, 0), np.fmin(given, 0), dtype=np.float64)
    recorded = draw.weights.T * known
    total, weights = recorded.sum(axis=0), recorded
    nothing = total <= _NOTHING
    if nothing.any():
        weights = np.where(nothing, known, recorded)
        total = weights.sum(axis=0)
    centre = _pool(weights, values) / total
    divergences = divergence(values.T, centre.T[:, None]).T
    gradient = pool_gradient(centre.T, targets).T
    slopes: Floats = np.einsum("ckm,cm->km", values, gradient)
    slopes -= (centre * gradient).sum(axis=0)
    noise = _noise(values, recorded, draw)
    omitting = _omission(values, recorded * draw.filling.T, centre, gradient)
    if not plain:
        spread = np.einsum("km,km->m", weights, divergences) / total
        divergences *= np.minimum(1.0, noise / np.where(spread > 1e-15, spread, np.inf))
    slopes += divergences
    slopes += unknown
    return Relative(slopes.T, np.stack([noise, omitting], axis=1))


def _omission(values: Floats, filling: Floats, centre: Floats, gradient: Floats) -> Floats:
    """[M] L(a) - L(c), a the pool of the models that fill the budget; 0 where none of them is known."""
    mass = filling.sum(axis=0)
    pool = np.where(mass > _NOTHING, _pool(filling, values) / np.where(mass > _NOTHING, mass, 1.0), centre)
    lost: Floats = ((pool - centre) * gradient).sum(axis=0) + divergence(pool.T, centre.T)
    return lost


def _noise(values: Floats, recorded: Floats, draw: Draw) -> Floats:
    """[M] E[L(prediction)] - L(c) over the draw, bounded by the case of one draw for all of the others."""
    inside = recorded * draw.certain.T
    others = recorded - inside
    rest = others.sum(axis=0)
    drawn = (rest > _NOTHING) & (draw.outside > 0)
    parts = (values, inside, others, rest, draw.outside)
    if drawn.all():
        return _noise_of_draws(*parts)
    noise, some = np.zeros(drawn.size), np.flatnonzero(drawn)
    if some.size == 1:
        some = some.repeat(2)
    if some.size:
        noise[some] = _noise_of_draws(*(part.take(some, axis=-1) for part in parts))
    return noise


def _noise_of_draws(values: Floats, inside: Floats, others: Floats, rest: Floats, outside: Floats) -> Floats:
    mass = inside.sum(axis=0)
    certain, far = _pool(inside, values) / np.where(mass > 0, mass, 1.0), _pool(others, values) / rest
    rho = np.where(mass > 0, outside, 1.0)
    centre = (1 - rho) * certain + rho * far
    # A prediction is the drawn model's output, times its share, and a part that does not depend on the draw.
    predictions = values * outside
    predictions += (centre - outside * far)[:, None]
    distances = divergence(predictions.T, centre.T[:, None]).T
    noise: Floats = np.einsum("km,km->m", others, distances) / rest
    return noise


def _pool(weights: Floats, values: Floats) -> Floats:
    """[C, M] the sum of [C, K, M] outputs, weighted."""
    pools: Floats = np.einsum("km,ckm->cm", weights, values)
    return pools
