"""Comparing fine-tuned models with their first versions.

In a control exchange (`local_updates.is_control`) clients hold models in their first versions, as pre-trained. They
evaluate them on the samples that they remember, for which they know what the fine-tuned versions of their time
predicted: before those were trained on the sample.
"""

from __future__ import annotations

import numpy as np

from ofms.core.pooling import pool_loss, poolable
from ofms.core.typing import Flags, Floats
from ofms.policies.observations import Recent, Samples

_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-5


def loss_by_tuning(
    recent: Recent, samples: Samples, weights: Floats, exchanges: tuple[int, int], remembers: int
) -> Floats:
    """[N, K] by how much fine-tuning a model made a client's pool worse, on average over its remembered samples.

    The pool's squared or classification error minus that with one model in its first version. On each sample, the pool
    is that of the models whose outputs are known in both versions; the result is 0 for a model that is not in it.

    Parameters
    ----------
    samples
        Outputs of networks in their first versions on the last samples.
    weights
        [N, K] prediction weights.
    exchanges
        The last control exchange and the current one: only samples between them are compared. Versions that were known
        before the last one may have been given up in it.
    remembers
        The number of samples that a client remembers, those of the current exchange included.
    """
    between = (exchanges[0] < recent.exchange) & (recent.exchange < exchanges[1])
    new = samples.targets.shape[1]
    kept = remembers - new if new else remembers
    length = min(samples.outputs.shape[1] - new, recent.targets.shape[1], kept)
    found: Floats = np.zeros(weights.shape)
    if length <= 0:
        return found
    last = slice(recent.targets.shape[1] - length, None)
    stop = samples.outputs.shape[1] - new
    first, tuned = samples.outputs[:, stop - length : stop], recent.outputs[:, last]
    known = ~np.isnan(first[..., 0]) & ~np.isnan(tuned[..., 0]) & between[:, last, None] & (weights > 0)[:, None]
    for client in np.flatnonzero(known.any(axis=(1, 2))):
        found[client] = _of_client(
            poolable(np.where(known[client, ..., None], first[client], 0.0)),
            np.where(known[client, ..., None], tuned[client], 0.0).astype(np.float64),
            np.where(known[client], weights[client], 0.0),
            recent.targets[client, last],
        )
    return found


def clearly_worse(losses: Floats) -> Flags:
    """[K] whether fine-tuning made models worse, from what N clients report.

    Worse by two standard errors; or worse at all, if fine-tuning made predictions worse in the whole fleet.

    >>> clearly_worse(np.array([[0.2, 0.2, -9.0]] * 4 + [[0.1, -0.3, -9.0]])).tolist()
    [True, False, False]
    >>> clearly_worse(np.array([[0.2, 0.2, -0.1], [0.1, -0.1, -0.1]])).tolist()
    [True, True, False]
    """
    totals, errors = np.nansum(losses, axis=0), np.sqrt(np.nansum(np.square(losses), axis=0))
    least = 0.0 if totals.sum() > 0 else _STANDARD_ERRORS
    worse: Flags = (totals > 0) & (totals >= least * errors)
    return worse


def better(losses: Floats) -> Flags:
    """[K] whether fine-tuning made models better, if it made those of the fleet better by a standard error.

    >>> better(np.array([[0.1, -0.4, 0.0], [0.1, 0.1, 0.0]])).tolist()
    [False, False, False]
    >>> better(np.array([[0.1, -0.4, 0.0]] * 5)).tolist()
    [False, True, False]
    """
    totals, of_clients = np.nansum(losses, axis=0), np.nansum(losses, axis=1)
    clear = of_clients.sum() < -np.sqrt(np.square(of_clients).sum())
    improved: Flags = (totals < 0) & clear
    return improved


def _of_client(first: Floats, tuned: Floats, weights: Floats, targets: Floats) -> Floats:
    """[K] from [R, K, C] outputs, [R, K] weights and [R] targets of one client."""
    totals = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)[..., None]
    pools = (shares * tuned).sum(axis=1)
    replaced = pools[:, None] + shares * (first - tuned)
    losses = _errors(pools, targets)
    changes = losses[:, None] - _errors(replaced, np.broadcast_to(targets[:, None], weights.shape))
    counts = (weights > 0).sum(axis=0)
    means: Floats = np.where(weights > 0, changes, 0.0).sum(axis=0) / np.maximum(counts, 1)
    # A model that went back and did not move since differs from its first version by rounding alone.
    return np.where(np.abs(means) > _ROUNDING * float(losses.mean()), means, 0.0)


def _errors(pools: Floats, targets: Floats) -> Floats:
    """What users see: squared errors, or 1 for a wrong class."""
    if pools.shape[-1] == 1:
        return pool_loss(pools, targets)
    wrong: Floats = (pools.argmax(axis=-1) != targets).astype(np.float64)
    return wrong
