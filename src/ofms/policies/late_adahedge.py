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

from ofms.core.pooling import log_sum_exp
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
        pooled: Floats = np.einsum("nj,njk->nk", self.mixture, self.members)
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
    means = hints * hedge.hint_sums / np.maximum(hedge.finished, 1)[:, None]
    losses = np.where(np.isnan(rounds.losses), means[:, None], rounds.losses)
    # Without a label, a round is none: hints alone would make a client more and more certain.
    empty = np.isnan(rounds.losses).all(axis=-1)
    steps = _replay(hedge.totals, replace(rounds, final=rounds.final | empty), losses, memories)
    complete = rounds.final | ~np.isnan(rounds.losses).any(axis=-1)
    complete[:, :expired] = True
    prefix = np.logical_and.accumulate(complete, axis=1)
    place = prefix.sum(axis=1)
    every = np.arange(place.size)
    final = Totals(*(part[every, place] for part in steps))
    now = Totals(*(part[:, -1] for part in steps))
    fresh = prefix & ~rounds.final & ~empty
    hedge = Hedge(
        final,
        np.maximum(memories * hedge.peaks, now.gaps),
        np.maximum(hedge.member_peak, now.member_gaps),
        hedge.hint_sums + np.where(fresh[..., None], losses, 0.0).sum(axis=1),
        hedge.finished + fresh.sum(axis=1),
    )
    return hedge, prefix, _weights(now, hedge)


def _replay(
    totals: Totals, rounds: OpenRounds, losses: Floats, memories: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """The totals before each round and after the last, [N, R + 1, ...]; final rounds change nothing."""
    skip, gamma = rounds.final, memories[:, None]
    incurred = np.einsum("nrjk,nrk->nrj", rounds.members, losses)
    sums, member_sums = [totals.losses], [totals.member_losses]
    for r in range(losses.shape[1]):
        done = skip[:, r, None]
        sums.append(np.where(done[..., None], sums[-1], gamma * sums[-1] + losses[:, r, None]))
        member_sums.append(np.where(done, member_sums[-1], member_sums[-1] + incurred[:, r]))
    before, members_before = np.stack(sums, axis=1), np.stack(member_sums, axis=1)
    mixed = _mix_loss(before[:, :-1], rounds.rates, losses[:, :, None] / gamma)
    gaps = np.maximum(0.0, incurred - memories * mixed)
    mean = (rounds.mixture * incurred).sum(axis=-1)
    member_gaps = np.maximum(0.0, mean - _mix_loss(members_before[:, :-1], rounds.mixture_rate, incurred))
    gap_sums, member_gap_sums = [totals.gaps], [totals.member_gaps]
    for r in range(losses.shape[1]):
        gap_sums.append(np.where(skip[:, r, None], gap_sums[-1], memories * gap_sums[-1] + gaps[:, r]))
        member_gap_sums.append(np.where(skip[:, r], member_gap_sums[-1], member_gap_sums[-1] + member_gaps[:, r]))
    return before, np.stack(gap_sums, axis=1), members_before, np.stack(member_gap_sums, axis=1)


def _mix_loss(sums: Floats, rates: Floats, losses: Floats) -> Floats:
    """-1/η ln Σ_k π_k exp(-η r_k) with π = softmax(-η S)."""
    eta = rates[..., None]
    return (log_sum_exp(-eta * sums) - log_sum_exp(-eta * (sums + losses))) / rates


def _weights(now: Totals, hedge: Hedge) -> Weights:
    models, members = now.losses.shape[-1], now.gaps.shape[-1]
    rates = np.minimum(math.log(models) / np.maximum(hedge.peaks, _LEAST_GAP), _LARGEST_RATE)
    mixture_rate = np.minimum(math.log(members) / np.maximum(hedge.member_peak, _LEAST_GAP), _LARGEST_RATE)
    # The rate of members is 0 if there is only one of them: any positive rate gives the same weights.
    mixture_rate = np.maximum(mixture_rate, _LEAST_GAP)
    mixture = _softmax(-mixture_rate[:, None] * now.member_losses)
    return Weights(_softmax(-rates[..., None] * now.losses), mixture, rates, mixture_rate)


def _softmax(values: Floats) -> Floats:
    shifted = np.exp(values - values.max(axis=-1, keepdims=True))
    probabilities: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities
