"""A client's steps in a round: choose a model, hold a set, estimate the losses, learn.

Weights z are stored as cumulative loss estimates, z_k = exp(-η Λ_k), to avoid under- and overflow. All functions
take a leading client axis; a device is the case N = 1. Sums over models run in the order of the models, so that a
client's numbers do not depend on the other clients in the array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.packing import PartitionTable
from ofms.core.typing import Flags, Floats, Integers

_NUMBERS_IN_A_BLOCK = 100_000


def probabilities(cumulative_losses: Floats, learning_rate: Floats) -> Floats:
    """The PMF over models, eq. (13r2), as a shifted softmax of the cumulative estimated losses.

    Parameters
    ----------
    cumulative_losses
        [N, K] Λ, the summed loss estimates of (2).
    learning_rate
        [N] η_i.

    Examples
    --------
    >>> probabilities(np.array([[0.0, np.log(3.0)]]), np.array([1.0]))
    array([[0.75, 0.25]])
    """
    shifted = cumulative_losses - cumulative_losses.min(axis=1, keepdims=True)
    shifted *= -learning_rate[:, None]
    weights = np.exp(shifted, out=shifted)
    pmf: Floats = weights / np.cumsum(weights, axis=1)[:, -1:]
    return pmf


def draw_model(pmf: Floats, uniform: Floats) -> Integers:
    """Draw an index from each row by inverse CDF; never one of probability 0.

    >>> draw_model(np.array([[0.5, 0.0, 0.5]] * 3), np.array([0.0, 0.5, 0.999999])).tolist()
    [0, 2, 2]
    """
    cdf = np.cumsum(pmf, axis=1)
    above = cdf > uniform[:, None]
    # By rounding, a CDF may end at or below a uniform number close to 1: draw the last model of positive probability.
    last_possible = np.argmax(cdf == cdf[:, -1:], axis=1)
    drawn: Integers = np.where(above[:, -1], np.argmax(above, axis=1), last_possible)
    return drawn


def draw_cluster(clusters: Integers, uniform: Floats) -> Integers:
    """Draw one of m clusters uniformly: min(⌊u·m⌋, m - 1).

    >>> draw_cluster(np.array([4, 4, 1]), np.array([0.0, 0.99, 0.7])).tolist()
    [0, 3, 0]
    """
    drawn = np.floor(uniform * clusters).astype(np.int64)
    return np.minimum(drawn, clusters - 1)


def one_hot(chosen: Integers, models: int) -> Floats:
    """[N, K] all weight on the chosen model.

    >>> one_hot(np.array([1, 0]), 2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    weights = np.zeros((chosen.size, models))
    weights[np.arange(chosen.size), chosen] = 1.0
    return weights


def held_set(table: PartitionTable, kind: Integers, chosen: Integers, drawn_cluster: Integers) -> Flags:
    """S = {I} ∪ D_J: the chosen model and its cluster (alg:6, step 8), as [N, K] flags, for N budgets by their index.

    >>> from ofms.core.packing import partition_models
    >>> table = partition_models(np.array([1, 1, 1, 1]), np.array([3]))
    >>> held_set(table, np.array([0]), np.array([1]), np.array([0])).tolist()
    [[True, True, True, False]]
    """
    held: Flags = table.cluster(kind, chosen) == drawn_cluster[:, None]
    held[np.arange(chosen.size), chosen] = True
    return held


def inclusion_probabilities(pmf: Floats, clusters: Integers) -> Floats:
    """The probability that a client holds each model, eq. (3), in one pass over the models.

    q_k = p_k + Σ_{j≠k} p_j / m_j = p_k (1 - 1/m_k) + Σ_j p_j / m_j.

    Parameters
    ----------
    pmf
        [N, K] p.
    clusters
        [N, K] m_j, the number of clusters when model j is chosen.

    Examples
    --------
    >>> inclusion_probabilities(np.array([[0.5, 0.25, 0.25]]), np.array([[2, 2, 2]]))
    array([[0.75 , 0.625, 0.625]])
    """
    share = pmf / clusters
    return (pmf - share) + np.cumsum(share, axis=1)[:, -1:]


@dataclass(frozen=True, eq=False)
class DrawnSets:
    """The clients' draws: [N] the chosen model I, [N, K] the set S to hold, [N, K] its probabilities q."""

    chosen: Integers
    held: Flags
    inclusion: Floats


def draw_sets(
    cumulative_losses: Floats,
    learning_rate: Floats,
    table: PartitionTable,
    uniform_for_model: Floats,
    uniform_for_cluster: Floats,
) -> DrawnSets:
    """Draw a model and a cluster for every client (alg:6, steps 5 to 8).

    Clients are processed in blocks that fit the cache, so that the cost per client does not grow with N.
    """
    clients, models = cumulative_losses.shape
    drawn = DrawnSets(
        np.empty(clients, dtype=np.int64),
        np.empty((clients, models), dtype=np.bool_),
        np.empty((clients, models)),
    )
    size = max(1, _NUMBERS_IN_A_BLOCK // models)
    for first in range(0, clients, size):
        rows = slice(first, min(first + size, clients))
        kind = table.kind[rows]
        clusters = table.clusters[kind]
        pmf = probabilities(cumulative_losses[rows], learning_rate[rows])
        chosen = draw_model(pmf, uniform_for_model[rows])
        cluster = draw_cluster(clusters[np.arange(chosen.size), chosen], uniform_for_cluster[rows])
        drawn.chosen[rows] = chosen
        drawn.held[rows] = held_set(table, kind, chosen, cluster)
        drawn.inclusion[rows] = inclusion_probabilities(pmf, clusters)
    return drawn


def loss_estimates(losses: Floats, held: Flags, inclusion: Floats) -> Floats:
    """The importance-sampling estimates ℓ, eq. (2), and (50ap) for losses summed over an interval.

    >>> loss_estimates(np.array([[0.5, 9.0]]), np.array([[True, False]]), np.array([[0.25, 0.5]]))
    array([[2., 0.]])
    """
    estimates = np.zeros_like(inclusion)
    np.divide(losses, inclusion, out=estimates, where=held)
    return estimates


def update_weights(cumulative_losses: Floats, estimates: Floats) -> Floats:
    """The multiplicative update, eq. (5): z·exp(-η ℓ) adds ℓ to the cumulative loss.

    >>> update_weights(np.array([[1.0, 2.0]]), np.array([[0.5, 0.0]]))
    array([[1.5, 2. ]])
    """
    return cumulative_losses + estimates


def use_weights(held: Flags, prediction: Floats, inclusion: Floats, uploads: Flags, groups: int) -> Floats:
    """The weight of a client's gradient by use: α · p/q if it uploads and holds the model, else 0.

    p is the probability that the model predicts, q ≥ p that it is held: at most α, and p in expectation.

    >>> use_weights(
    ...     np.array([[True, False]]), np.array([[0.125, 0.5]]), np.array([[0.25, 0.5]]), np.array([True]), groups=2
    ... )
    array([[1., 0.]])
    """
    share = np.zeros_like(inclusion)
    np.divide(prediction, inclusion, out=share, where=held & uploads[:, None])
    return groups * share


def importance_weights(held: Flags, inclusion: Floats, uploads: Flags, groups: int, cap: float | None = None) -> Floats:
    """The weight of a client's gradient, eq. (2r2): α · min(1/q, cap) if it uploads and holds the model, else 0.

    >>> importance_weights(
    ...     np.array([[True, False]]), np.array([[0.25, 0.5]]), np.array([True]), groups=2, cap=3.0
    ... )
    array([[6., 0.]])
    """
    inverse = np.zeros_like(inclusion)
    np.divide(1.0, inclusion, out=inverse, where=held & uploads[:, None])
    if cap is not None:
        np.minimum(inverse, cap, out=inverse)
    return groups * inverse
