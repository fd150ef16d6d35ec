"""Mixtures of models: exponential weights over some of them, draws with replacement, mean losses."""

from __future__ import annotations

import numpy as np

from ofms.core import selection
from ofms.core.typing import Flags, Floats, Integers


def hedge_weights(losses: Floats, learning_rate: float, among: Flags) -> Floats:
    """[N, K] exp(-η Λ) of cumulative losses, normalised over [N, K] flags; 0 for a client without any.

    >>> hedge_weights(np.array([[1.0, 0.0, 2.0]]), np.log(3.0), np.array([[True, False, True]])).tolist()
    [[0.75, 0.0, 0.25]]
    """
    least = np.where(among, losses, np.inf).min(axis=1, keepdims=True)
    excess = np.where(among, losses - np.where(np.isfinite(least), least, 0.0), 0.0)
    weights = np.where(among, np.exp(-learning_rate * excess), 0.0)
    total = np.cumsum(weights, axis=1)[:, -1:]
    normalised: Floats = weights / np.where(total > 0, total, 1.0)
    return normalised


def draw_with_replacement(pmf: Floats, uniform: Floats, trials: Integers) -> tuple[Flags, Floats]:
    """[N, K] the models drawn in [N] M trials from a PMF, by [N, trials] numbers; and 1 - (1 - p)^M, their probability.

    >>> drawn, inclusion = draw_with_replacement(np.array([[0.5, 0.5]]), np.array([[0.1, 0.2]]), np.array([2]))
    >>> drawn.tolist(), inclusion.tolist()
    ([[True, False]], [[0.75, 0.75]])
    """
    drawn = np.zeros(pmf.shape, dtype=np.bool_)
    for trial, numbers in enumerate(uniform.T):
        one = selection.one_hot(selection.draw_model(pmf, numbers), pmf.shape[1]) > 0
        drawn |= one & (pmf > 0) & (trial < trials)[:, None]
    # At least p, which the difference loses if p is tiny.
    inclusion = np.maximum(1 - (1 - pmf) ** trials[:, None], np.where(trials[:, None] > 0, pmf, 0.0))
    return drawn, inclusion


def mean_loss(losses: Floats, weights: Floats, members: Flags) -> Floats:
    """[N] the weighted mean loss of [N, K] members; equally weighted if their weights underflowed, 0 if there are none.

    >>> losses, weights = np.array([[1.0, 2.0, np.nan]]), np.array([[0.25, 0.75, 0.6]])
    >>> mean_loss(losses, weights, np.array([[True, True, False]])).tolist()
    [1.75]
    """
    of_members = np.where(members, weights, 0.0)
    lost = np.cumsum(of_members, axis=1)[:, -1:] == 0
    of_members = np.where(lost, members, of_members)
    total = np.cumsum(of_members, axis=1)[:, -1]
    summed = np.cumsum(of_members * np.where(members, losses, 0.0), axis=1)[:, -1]
    mean: Floats = summed / np.where(total > 0, total, 1.0)
    return mean
