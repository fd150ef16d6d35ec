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
from ofms.policies.offsets import Offsets, learn

_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-5


def loss_by_tuning(
    recent: Recent,
    samples: Samples,
    weights: Floats,
    exchanges: tuple[int, int],
    remembers: int,
    memories: tuple[float, ...] = (),
) -> Floats:
    """[N, K] by how much fine-tuning made a client's pool worse, divided among its models by their weights.

    With e the mean squared or classification error of the pool over the remembered samples, and e' that of the pool of
    the same models in their first versions, it is (e - e')/(e + e'), from -1 to 1: all clients count alike, whatever
    their errors are. On each sample, the pool is that of the models whose outputs are known in both versions. If
    predictions have offsets, each of the two pools has the offsets that are learnt from it on these samples.

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
    memories
        The discounts γ with which clients learn offsets; none for no offset.
    """
    between = (exchanges[0] < recent.exchange) & (recent.exchange < exchanges[1])
    new = samples.targets.shape[1]
    length = min(samples.outputs.shape[1] - new, recent.targets.shape[1], remembers - new)
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
            np.array(memories),
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
    # In a small fleet, gains and losses may be equal, or all votes: rounding must not decide then.
    nothing = _ROUNDING * np.nansum(np.abs(losses), axis=0)
    least = 0.0 if totals.sum() > nothing.sum() else _STANDARD_ERRORS - _ROUNDING
    worse: Flags = (totals > nothing) & (totals >= least * errors)
    return worse


def gains_by_tuning(losses: Floats) -> Floats:
    """[K] by which share fine-tuning reduced the clients' errors; 0 for models that it did not improve.

    It counts if the errors of the fleet fell by a standard error.

    >>> gains_by_tuning(np.array([[0.1, -0.2, 0.0], [0.1, 0.1, 0.0]])).tolist()
    [0.0, 0.0, 0.0]
    >>> gains_by_tuning(np.array([[0.1, -0.2, 0.0]] * 5)).round(6).tolist()
    [0.0, 0.2, 0.0]
    """
    totals, of_clients = np.nansum(losses, axis=0), np.nansum(losses, axis=1)
    clear = of_clients.sum() < -(1 + _ROUNDING) * np.sqrt(np.square(of_clients).sum())
    # Changes are relative to the sum of both errors.
    share = -2 * float(of_clients.mean()) if clear else 0.0
    return np.where(totals < 0, share, 0.0)


def _of_client(first: Floats, tuned: Floats, weights: Floats, targets: Floats, memories: Floats) -> Floats:
    """[K] from [R, K, C] outputs, [R, K] weights and [R] targets of one client."""
    totals = weights.sum(axis=1, keepdims=True)
    shares = (weights / np.where(totals > 0, totals, 1.0))[..., None]
    pools = (shares * tuned).sum(axis=1)
    versions = np.stack([pools, (shares * first).sum(axis=1)], axis=1)
    known = totals[:, 0] > 0
    if memories.size:
        versions = _with_offsets(versions, targets, known, memories)
    errors = _errors(versions, np.broadcast_to(targets[:, None], versions.shape[:2]))[known]
    tuned_error, first_error = errors.mean(axis=0).tolist()
    # A model that went back and did not move since differs from its first version by rounding alone.
    if abs(tuned_error - first_error) <= _ROUNDING * tuned_error:
        return np.zeros(weights.shape[1])
    change: Floats = shares[known, :, 0].mean(axis=0) * (tuned_error - first_error) / (tuned_error + first_error)
    return change


def _with_offsets(pools: Floats, targets: Floats, known: Flags, memories: Floats) -> Floats:
    """[R, V, C] the pools of V versions with the offsets that are learnt from each on the samples before."""
    offsets, shifted = Offsets.none(pools.shape[1], memories.size), pools.copy()
    for place in np.flatnonzero(known).tolist():
        mean = offsets.mean
        if mean is not None:
            shifted[place] += mean
        target = np.full((pools.shape[1], 1), targets[place])
        offsets = learn(offsets, pools[place][:, None], target, memories)
    return shifted


def _errors(pools: Floats, targets: Floats) -> Floats:
    """What users see: squared errors, or 1 for a wrong class."""
    if pools.shape[-1] == 1:
        return pool_loss(pools, targets)
    wrong: Floats = (pools.argmax(axis=-1) != targets).astype(np.float64)
    return wrong
