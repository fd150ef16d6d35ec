"""AdaHedge with losses that arrive late, for several memories hedged against each other.

A member of memory γ weights models by exp(-η S), S ← γ S + r, at the rate η = β ln K over its mixability gaps, which
needs neither a horizon nor the scale of the losses; β = 1 is AdaHedge's. Members are weighted likewise, with β = 1, by
what each of them would have incurred. Rounds whose losses are not complete yet are replayed in each round on top of
those that are final: losses that are not known take a hint, the model's mean in the final rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.policies.exponential_weights import mixed, softmax

_LARGEST_RATE = 1e6
_LEAST_GAP = 1e-9
# Pairs of client and round that are worked on at once.
_AT_ONCE = 4000


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
        pooled: Floats = np.einsum("jn,jkn->kn", self.mixture.T, self.members.transpose(1, 2, 0))
        return pooled.T


@dataclass(frozen=True, eq=False)
class OpenRounds:
    """R rounds with their weights, oldest first.

    Attributes
    ----------
    members, mixture, rates, mixture_rate
        [N, R, ...] as in `Weights`.
    losses
        [N, R, K] what is known of each model's relative loss; NaN if it is not known. The last rounds are left out
        until something is known of them.
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

    `peaks` [N, J] and `member_peak` [N] are the largest sums of gaps so far, discounted in rounds with a label: rates
    only fall.
    """

    totals: Totals
    peaks: Floats
    member_peak: Floats
    hint_sums: Floats
    finished: Integers


def start(clients: int, models: int, members: int) -> Hedge:
    """Nothing learnt."""
    shape = (clients, members)
    # Clients last in memory, as in all that follows.
    losses = np.zeros((members, models, clients)).transpose(2, 0, 1)
    totals = Totals(losses, np.zeros(shape), np.zeros(shape), np.zeros(clients))
    hints = np.zeros((clients, models))
    return Hedge(totals, np.zeros(shape), np.zeros(clients), hints, np.zeros(clients, dtype=np.int64))


def advance(
    hedge: Hedge,
    rounds: OpenRounds,
    memories: Floats,
    expired: int,
    *,
    hints: bool,
    share: float = 1.0,
    complete: Flags | None = None,
) -> tuple[Hedge, Flags, Weights]:
    """Replay the open rounds; return the hedge, [N, R] which rounds are final now, and the weights of the next round.

    The first rounds without a gap in what is known become final, and so do the `expired` oldest, with hints.

    Parameters
    ----------
    share
        β, the share of AdaHedge's rate.
    complete
        [N, R] the rounds in which all is known, if losses that are known may still change.
    """
    # Rounds come first and clients last, here and below: NumPy is fastest along the last axis.
    done, learnt = np.ascontiguousarray(rounds.final.T), rounds.losses.shape[1]
    losses = np.full((len(done), *hedge.hint_sums.T.shape), np.nan)
    losses[:learnt] = rounds.losses.transpose(1, 2, 0)
    unknown = np.isnan(losses)
    if hints and hedge.finished.any():
        losses = np.where(unknown, hedge.hint_sums.T / np.maximum(hedge.finished, 1), losses)
    else:
        losses = np.fmax(losses, 0.0) + np.fmin(losses, 0.0)
    known = done | (~unknown.any(axis=1) if complete is None else complete.T)
    known[:expired] = True
    prefix = np.logical_and.accumulate(known, axis=0)
    # Without a label, a round is none: hints alone would make a client more and more certain.
    counts = ~done & ~unknown.all(axis=1)
    fresh = prefix & counts
    place = prefix.sum(axis=0) if fresh.any() else None
    replay = _replay(hedge.totals, rounds, losses, counts, memories, place)
    hedge = replace(
        hedge,
        peaks=np.maximum(_discounted(hedge, rounds.rates / share, counts, memories), replay.gaps[-1].T),
        member_peak=np.maximum(hedge.member_peak, replay.member_gaps[-1]),
    )
    if place is not None:
        hedge = replace(
            hedge,
            totals=replay.totals(place),
            hint_sums=hedge.hint_sums + (losses * fresh[:, None]).sum(axis=0).T,
            finished=hedge.finished + fresh.sum(axis=0),
        )
    return hedge, prefix.T, _weights(replay, hedge, share)


def _discounted(hedge: Hedge, rates: Floats, counts: Flags, memories: Floats) -> Floats:
    """[N, J] peaks before the next round: those since the last round with a label, discounted once.

    A round without a label is none, so it discounts nothing: otherwise rates would rise while nothing is learnt. But a
    label may still come, so the next peak is at least γ times those of all rounds since the last label.
    """
    if not len(counts) or counts[-1].all():
        return memories * hedge.peaks
    labelled = np.logical_or.accumulate(counts[::-1], axis=0)[::-1]
    # Rounds with a label after them play no part.
    since = np.concatenate([~labelled[1:], np.ones_like(labelled[:1])]).T
    lowest = np.where(since[..., None], rates, np.inf).min(axis=1)
    waited = np.where(labelled[0][:, None], memories * math.log(hedge.hint_sums.shape[1]) / lowest, hedge.peaks)
    return np.where(counts[-1][:, None], memories * hedge.peaks, waited)


@dataclass(frozen=True, eq=False)
class _Replay:
    """The totals before each round and after the last.

    Of the models' losses, only those [J, K, N] after the rounds that are final, and those after the last one, less the
    least of each member. The others are [R + 1, J, N], and [R + 1, N] for the gaps of hedging members.
    """

    final: Floats
    above: Floats
    gaps: Floats
    member_losses: Floats
    member_gaps: Floats

    def totals(self, place: Integers) -> Totals:
        """The totals of each client before the round at its place."""
        others = (_at(part, place).T for part in (self.gaps, self.member_losses, self.member_gaps))
        return Totals(self.final.transpose(2, 0, 1), *others)


def _replay(
    totals: Totals, rounds: OpenRounds, losses: Floats, counts: Flags, memories: Floats, place: Integers | None
) -> _Replay:
    """Replay [R, K, N] losses; [R, N] say which rounds count, [N] before which round each client is not final."""
    count, models, clients = losses.shape
    members, together = memories.size, max(1, _AT_ONCE // clients)
    sums, added = np.empty((count + 1, models, clients)), losses * counts[:, None]
    above = np.empty((members, models, clients))
    final = np.empty_like(above) if place is not None else above
    incurred, change = np.empty((2, count, members, clients))
    rates, factor = rounds.rates.transpose(1, 2, 0), np.where(counts[:, None], memories[:, None], 1.0)
    # Member by member, and a few rounds at once: their arrays fit the cache.
    for j, gamma in enumerate(memories):
        sums[0] = totals.losses[:, j].T
        for r in range(count):
            np.multiply(sums[r], factor[r, j], out=sums[r + 1])
            sums[r + 1] += added[r]
        if place is not None:
            final[j] = _at(sums, place)
        least = sums.min(axis=1)
        sums -= least[:, None]
        above[j] = sums[-1]
        for first in range(0, count, together):
            some, after = slice(first, first + together), slice(first + 1, first + together + 1)
            rate, weights = rates[some, j], rounds.members[:, some, j].transpose(1, 2, 0).astype(np.float64, order="C")
            np.einsum("rkn,rkn->rn", weights, losses[some], out=incurred[some, j])
            # The losses of a round are divided by γ where they are mixed, so that S + r/γ is the next S over γ.
            before = mixed(sums[:-1][some], least[:-1][some], rate, weights)
            change[some, j] = mixed(sums[after], least[after], rate / gamma, weights) - gamma * before
    gaps = _sums(totals.gaps.T, np.maximum(0.0, incurred - change) * counts[:, None], factor)
    member_losses = _sums(totals.member_losses.T, incurred * counts[:, None])
    least, rate = member_losses.min(axis=1), rounds.mixture_rate.T
    over = member_losses - least[:, None]
    hedged = (rounds.mixture.transpose(1, 2, 0) * incurred).sum(axis=1)
    hedged -= mixed(over[1:], least[1:], rate) - mixed(over[:-1], least[:-1], rate)
    member_gaps = _sums(totals.member_gaps, np.maximum(0.0, hedged) * counts)
    return _Replay(final, above, gaps, member_losses, member_gaps)


def _sums(start: Floats, added: Floats, factor: Floats | None = None) -> Floats:
    """Sums before each of the rounds, along the first axis, and after the last, discounted by factors."""
    sums = np.empty((len(added) + 1, *start.shape))
    sums[0] = start
    for r, each in enumerate(added):
        np.add(sums[r] if factor is None else factor[r] * sums[r], each, out=sums[r + 1])
    return sums


def rates_of(hedge: Hedge, share: float = 1.0) -> Floats:
    """[N, J] η = β ln K over the largest gaps so far."""
    models = hedge.hint_sums.shape[1]
    rates: Floats = np.minimum(share * math.log(models) / np.maximum(hedge.peaks, _LEAST_GAP), _LARGEST_RATE)
    return rates


def _weights(replay: _Replay, hedge: Hedge, share: float) -> Weights:
    members, _, _ = replay.above.shape
    rates = rates_of(hedge, share)
    mixture_rate = np.minimum(math.log(members) / np.maximum(hedge.member_peak, _LEAST_GAP), _LARGEST_RATE)
    # The rate of members is 0 if there is only one of them: any positive rate gives the same weights.
    mixture_rate = np.maximum(mixture_rate, _LEAST_GAP)
    losses = replay.member_losses[-1]
    mixture = softmax(losses - losses.min(axis=0), mixture_rate)
    weights = np.empty_like(replay.above)
    for j in range(members):
        softmax(replay.above[j], rates[:, j], weights[j])
    return Weights(weights.transpose(2, 0, 1), mixture.T, rates, mixture_rate)


def _at(steps: Floats, place: Integers) -> Floats:
    """[..., N] of [R + 1, ..., N] steps, for each client that of its place."""
    size = steps[0].size
    inner = np.arange(size).reshape(steps.shape[1:])
    found: Floats = steps.take(inner + size * place)
    return found
