"""AdaHedge with losses that arrive late, for several memories hedged against each other.

A member of memory γ weights models by exp(-η S), S ← γ S + r, at the rate η = ln K over its mixability gaps, which
needs neither a horizon nor the scale of the losses. Members are weighted likewise by what each of them would have
incurred. Rounds whose losses are not complete yet are replayed in each round on top of those that are final: losses
that are not known take a hint, the model's mean in the final rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers

_LARGEST_RATE = 1e6
_LEAST_GAP = 1e-9


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over rounds: [N, J, K] losses and [N, J] gaps of members, [N, J] losses and [N] gaps of hedging members."""

    losses: Floats
    gaps: Floats
    member_losses: Floats
    member_gaps: Floats


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a round: [N, J, K] of each member, [N, J] of the members, and the rates that made them."""

    members: AnyArray
    mixture: Floats
    rates: Floats
    mixture_rate: Floats

    @property
    def pooled(self) -> Floats:
        """[N, K] p, the members' weights mixed."""
        pooled: Floats = np.einsum("nj,njk->nk", self.mixture, self.members, order="C")
        return pooled


@dataclass(frozen=True, eq=False)
class OpenRounds:
    """R rounds with their weights, oldest first.

    Attributes
    ----------
    members, mixture, rates, mixture_rate
        [N, R, ...] as in `Weights`.
    losses
        [N, R, K] what is known of each model's relative loss; NaN if it is not known.
    final
        [N, R] whether the round is already in the totals.
    """

    members: AnyArray
    mixture: Floats
    rates: Floats
    mixture_rate: Floats
    losses: Floats
    final: Flags


@dataclass(frozen=True, eq=False)
class Hedge:
    """The totals over final rounds, the largest gaps so far, and the sums that hints are the means of.

    `peaks` [N, J] and `member_peak` [N] are the largest sums of gaps so far, discounted: rates only fall.
    """

    totals: Totals
    peaks: Floats
    member_peak: Floats
    hint_sums: Floats
    finished: Integers


def start(clients: int, models: int, members: int) -> Hedge:
    """Nothing learnt."""
    shape = (clients, members)
    totals = Totals(np.zeros((*shape, models)), np.zeros(shape), np.zeros(shape), np.zeros(clients))
    hints = np.zeros((clients, models))
    return Hedge(totals, np.zeros(shape), np.zeros(clients), hints, np.zeros(clients, dtype=np.int64))


def advance(
    hedge: Hedge, rounds: OpenRounds, memories: Floats, expired: int, *, hints: bool = True
) -> tuple[Hedge, Flags, Weights]:
    """Replay the open rounds; return the hedge, [N, R] which rounds are final now, and the weights of the next round.

    The first rounds without a gap in what is known become final, and so do the `expired` oldest, with hints.
    """
    losses = np.array(rounds.losses.transpose(1, 2, 0), order="C")
    unknown, done = np.isnan(losses), np.ascontiguousarray(rounds.final.T)
    means = hints * hedge.hint_sums / np.maximum(hedge.finished, 1)[:, None]
    np.copyto(losses, means.T, where=unknown)
    complete = done | ~unknown.any(axis=1)
    complete[:expired] = True
    prefix = np.logical_and.accumulate(complete, axis=0)
    # Without a label, a round is none: hints alone would make a client more and more certain.
    counts = ~done & ~unknown.all(axis=1)
    steps = _replay(hedge.totals, rounds, losses, counts, memories)
    now = Totals(*(part[-1].T for part in steps))
    hedge = replace(
        hedge,
        peaks=np.maximum(memories * hedge.peaks, now.gaps),
        member_peak=np.maximum(hedge.member_peak, now.member_gaps),
    )
    fresh = prefix & counts
    if fresh.any():
        place, every = prefix.sum(axis=0), np.arange(prefix.shape[1])
        hedge = replace(
            hedge,
            totals=Totals(*(part.transpose(0, *range(part.ndim - 1, 0, -1))[place, every] for part in steps)),
            hint_sums=hedge.hint_sums + (losses * fresh[:, None]).sum(axis=0).T,
            finished=hedge.finished + fresh.sum(axis=0),
        )
    return hedge, prefix.T, _weights(now, hedge)


def _replay(
    totals: Totals, rounds: OpenRounds, losses: Floats, counts: Flags, memories: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """The totals before each round and after the last, from [R, K, N] losses; [R, N] which rounds count.

    Rounds come first and clients last, [R + 1, K, J, N]: NumPy is fastest along the last axis.
    """
    count, models, clients = losses.shape
    rates = np.ascontiguousarray(rounds.rates.transpose(1, 2, 0))
    mixture_rate, mixture = rounds.mixture_rate.T, rounds.mixture.transpose(1, 2, 0)
    incurred = np.einsum("nrjk,rkn->rjn", rounds.members.astype(np.float64), losses)
    factor = np.where(counts[:, None], memories[:, None], 1.0)
    sums = np.empty((count + 1, models, memories.size, clients))
    sums[0] = totals.losses.T
    for r, added in enumerate((losses * counts[:, None])[:, :, None]):
        np.multiply(sums[r], factor[r], out=sums[r + 1])
        sums[r + 1] += added
    member_sums = np.empty((count + 1, memories.size, clients))
    member_sums[0], member_sums[1:] = totals.member_losses.T, incurred * counts[:, None]
    np.cumsum(member_sums, axis=0, out=member_sums)
    # The losses of a round are divided by γ where they are mixed, so that S + r/γ is the next S over γ.
    gamma = memories[:, None]
    mixed = _mixed(sums[1:], rates / gamma) - gamma * _mixed(sums[:-1], rates)
    gaps = np.maximum(0.0, incurred - mixed) * counts[:, None]
    mixed = _mixed(member_sums[1:], mixture_rate) - _mixed(member_sums[:-1], mixture_rate)
    member_gaps = np.maximum(0.0, (mixture * incurred).sum(axis=1) - mixed) * counts
    gap_sums = np.empty((count + 1, memories.size, clients))
    gap_sums[0] = totals.gaps.T
    for r in range(count):
        gap_sums[r + 1] = factor[r] * gap_sums[r] + gaps[r]
    member_gap_sums = np.cumsum(np.concatenate([totals.member_gaps[None], member_gaps]), axis=0)
    return sums, gap_sums, member_sums, member_gap_sums


def _mixed(sums: Floats, rates: Floats) -> Floats:
    """-1/η ln Σ_k exp(-η S_k) along the second axis."""
    least = sums.min(axis=1)
    values = sums - least[:, None]
    values *= -rates[:, None]
    np.exp(values, out=values)
    mixed: Floats = least - np.log(values.sum(axis=1)) / rates
    return mixed


def _weights(now: Totals, hedge: Hedge) -> Weights:
    models, members = now.losses.shape[-1], now.gaps.shape[-1]
    rates = np.minimum(math.log(models) / np.maximum(hedge.peaks, _LEAST_GAP), _LARGEST_RATE)
    mixture_rate = np.minimum(math.log(members) / np.maximum(hedge.member_peak, _LEAST_GAP), _LARGEST_RATE)
    # The rate of members is 0 if there is only one of them: any positive rate gives the same weights.
    mixture_rate = np.maximum(mixture_rate, _LEAST_GAP)
    mixture = _softmax(now.member_losses, mixture_rate)
    return Weights(_softmax(now.losses, rates), mixture, rates, mixture_rate)


def _softmax(sums: Floats, rates: Floats) -> Floats:
    """The weights exp(-η S), normalised."""
    # In this order, NumPy is fast along clients.
    values: Floats = np.subtract(sums, sums.min(axis=-1, keepdims=True), order="F")
    values *= -rates[..., None]
    np.exp(values, out=values)
    values /= values.sum(axis=-1, keepdims=True)
    return values
