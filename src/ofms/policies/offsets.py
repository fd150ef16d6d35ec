"""An offset that a client adds to its pooled predictions, learnt online from its labels.

With pools z_t and a convex loss L_t, member j does online gradient descent on b ↦ L_t(z_t + b),

    b_j ← b_j - (∇L_t(z_t + b_j) + (1 - γ_j) h b_j) / (h (n_j + 1)),   n_j ← γ_j n_j + 1,

with γ_j its memory and h the scale of the loss' curvature: for the squared error and γ = 1, b_j is the sum of the
residuals z - y of t rounds over -(t + 1). Members, and an offset of 0 beside them, are hedged with AdaHedge by their
losses, so that a client loses next to nothing where an offset does not pay. For classes an offset is one number per
class, added to log-probabilities: it corrects the class frequencies that the models assume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ofms.core.pooling import LARGEST, pool_gradient, pool_loss
from ofms.core.selection_loss import MOST_LOSS
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.policies.blocks import in_blocks
from ofms.policies.exponential_weights import mixed, softmax

_LARGEST_RATE = 1e6
_LEAST_GAP = 1e-9
# Clients that are worked on at once.
_AT_ONCE = 4000
# h: the curvature of the squared error, and twice the largest one of the log-loss.
_SQUARED, _LOG = 2.0, 1.0


@dataclass(frozen=True, eq=False)
class Offsets:
    """What N clients have learnt; C is 0 before the first label.

    Attributes
    ----------
    values
        [N, J, C] the members' offsets.
    counts
        [N, J] n, the discounted numbers of labels.
    losses, gap
        [N, J + 1] the losses of the pools without an offset and with those of the members, and [N] the sum of the
        hedge's mixability gaps.
    """

    values: Floats
    counts: Floats
    losses: Floats
    gap: Floats

    @classmethod
    def none(cls, clients: int, members: int) -> Offsets:
        """Nothing learnt."""
        shape = (clients, members)
        losses = np.zeros((clients, members + 1 if members else 0))
        return cls(np.zeros((*shape, 0)), np.zeros(shape), losses, np.zeros(clients))

    @property
    def mean(self) -> Floats | None:
        """[N, C] the offsets that are added to predictions; None before the first label."""
        if not self.values.shape[2]:
            return None
        return in_blocks(_Mean(self, np.zeros((self.gap.size, 0))), self.gap.size, _AT_ONCE, _averaged).mean


@dataclass(frozen=True, eq=False)
class _Mean:
    offsets: Offsets
    mean: Floats


def _averaged(part: _Mean, rows: slice | Integers) -> _Mean:
    _, weights = _hedged(part.offsets)
    return _Mean(part.offsets, _mixed_value(part.offsets, weights).T)


def learn(offsets: Offsets, pools: Floats, targets: AnyArray, memories: Floats) -> Offsets:
    """Learn from [N, n, C] pools without an offset on labelled samples, one after the other; [J] γ are the memories.

    >>> from ofms.policies.offsets import Offsets
    >>> learnt = learn(Offsets.none(1, 1), np.full((1, 2, 1), 0.5), np.array([[0.8, 0.8]]), np.ones(1))
    >>> learnt.values.round(6).tolist(), learnt.losses.round(6).tolist()
    ([[[0.2]]], [[0.18, 0.1125]])
    """
    clients, samples, width = pools.shape
    if not offsets.values.shape[2]:
        values = np.zeros((offsets.counts.shape[1], width, clients)).transpose(2, 0, 1)
        offsets = Offsets(values, offsets.counts, offsets.losses, offsets.gap)

    def work(some: Offsets, rows: slice | Integers) -> Offsets:
        for sample in range(samples):
            some = _learn_one(some, np.ascontiguousarray(pools[rows, sample].T), targets[rows, sample], memories)
        return some

    return in_blocks(offsets, clients, _AT_ONCE, work)


def _learn_one(offsets: Offsets, pools: Floats, targets: AnyArray, memories: Floats) -> Offsets:
    """Learn from [C, N] pools. Clients come last, here and below: NumPy is fastest along the last axis."""
    rates, weights = _hedged(offsets)
    values = np.ascontiguousarray(offsets.values.transpose(1, 2, 0))
    sound = np.isfinite(pools).all(axis=0) & (np.abs(pools[0]) < LARGEST)
    pools = np.where(sound, pools, 0.0)
    shifted = pools + values
    incurred = _losses(pools + _mixed_value(offsets, weights), targets)
    losses = np.concatenate([_losses(pools, targets)[None], _losses(shifted, targets)])
    before = offsets.losses.T
    after = before + losses
    change = _mixed_loss(after, rates) - _mixed_loss(before, rates)
    gap = offsets.gap + np.maximum(0.0, incurred - change)
    scale, gamma = _SQUARED if len(pools) == 1 else _LOG, memories[:, None]
    counts = gamma * offsets.counts.T + 1
    slopes = _gradients(shifted, targets)
    slopes += ((1 - gamma) * scale)[..., None] * values
    values = values - slopes / (scale * (counts + 1))[:, None]
    if not sound.all():
        # Pools of models that overflowed say nothing about an offset.
        values, counts = (
            np.where(sound, values, offsets.values.transpose(1, 2, 0)),
            np.where(sound, counts, offsets.counts.T),
        )
        after, gap = np.where(sound, after, before), np.where(sound, gap, offsets.gap)
    return Offsets(values.transpose(2, 0, 1), counts.T, after.T, gap)


def _hedged(offsets: Offsets) -> tuple[Floats, Floats]:
    """[N] the hedge's rates, and [J + 1, N] the weights of no offset and of the members."""
    losses = offsets.losses.T
    rates = np.minimum(math.log(len(losses)) / np.maximum(offsets.gap, _LEAST_GAP), _LARGEST_RATE)
    return rates, softmax(losses - losses.min(axis=0), rates)


def _mixed_value(offsets: Offsets, weights: Floats) -> Floats:
    """[C, N] the members' offsets, weighted."""
    values = offsets.values.transpose(1, 2, 0)
    value: Floats = weights[1] * values[0]
    # One after the other: the order of additions does not depend on the layout in memory.
    for weight, each in zip(weights[2:], values[1:], strict=True):
        value += weight * each
    return value


def _mixed_loss(losses: Floats, rates: Floats) -> Floats:
    least = losses.min(axis=0)
    return mixed(losses - least, least, rates)


def _losses(pools: Floats, targets: AnyArray) -> Floats:
    """[..., N] of [..., C, N] pools."""
    across = pools.swapaxes(-1, -2)
    return np.minimum(pool_loss(across, np.broadcast_to(targets, across.shape[:-1])), MOST_LOSS)


def _gradients(pools: Floats, targets: AnyArray) -> Floats:
    """[..., C, N] of [..., C, N] pools."""
    across = pools.swapaxes(-1, -2)
    return pool_gradient(across, np.broadcast_to(targets, across.shape[:-1])).swapaxes(-1, -2)
