"""Late hedging as docs/theory.md states it, for the squared error of N clients at once: for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ofms.core.typing import Flags, Floats
from tests.policies.hedging import lay_out

Sums = tuple[Floats, Floats, Floats, Floats]


@dataclass(eq=False)
class Open:
    """A round until every model was evaluated on its sample."""

    members: Floats
    votes_of_members: Floats
    rates: Floats
    rate_of_members: Floats
    certain: Flags
    outputs: Floats = field(default_factory=lambda: np.zeros(0))
    known: Flags = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    losses: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def weights(self) -> Floats:
        return np.asarray(np.einsum("nj,njk->nk", self.votes_of_members, self.members))


class LateClients:
    """Clients with memory for `budget` of `models` equal models, which always draw from the others.

    Memories are the γ of their members, `share` is β.
    """

    def __init__(
        self, clients: int, models: int, budget: int, window: int, memories: tuple[float, ...], share: float = 1.0
    ) -> None:
        self.shape, self.budget, self.stride, self.share = (clients, models), budget, window // models, share
        self.delay, self.memory = self.stride * models, np.array(memories)
        members = len(memories)
        self.final: Sums = (
            np.zeros((clients, members, models)),
            np.zeros((clients, members)),
            np.zeros((clients, members)),
            np.zeros(clients),
        )
        self.top, self.top_of_members = np.zeros((clients, members)), np.zeros(clients)
        self.hints, self.finished, self.step = np.zeros(self.shape), 0, 0
        self.open: list[Open] = []
        self.last = np.full(self.shape, -1)
        self.random = np.random.default_rng(0)

    def begin(self) -> Open:
        """The weights of the next round, and which models are certain to be held in it: all that an adversary knows."""
        if len(self.open) == self.delay:
            oldest = self.open.pop(0)
            assert oldest.known.all(), "every model is evaluated on every sample"
            self.final = self.replayed(self.final, oldest, oldest.losses)
            self.hints, self.finished = self.hints + oldest.losses, self.finished + 1
        sums, hint = self.final, self.hints / max(1, self.finished)
        for past in self.open:
            sums = self.replayed(sums, past, np.where(past.known, past.losses, hint))
        cumulative, gaps, of_members, gap_of_members = sums
        self.top = np.maximum(self.memory * self.top, gaps)
        self.top_of_members = np.maximum(self.top_of_members, gap_of_members)
        rates = np.minimum(self.share * math.log(self.shape[1]) / np.maximum(self.top, 1e-9), 1e6)
        rate = np.minimum(math.log(len(self.memory)) / np.maximum(self.top_of_members, 1e-9), 1e6)
        members, votes = softmaxes(-rates[..., None] * cumulative), softmaxes(-rate[:, None] * of_members)
        self.now = Open(members, votes, rates, rate, np.zeros(self.shape, dtype=np.bool_))
        age = self.step - 1 - self.last
        self.layouts = []
        for client, weights in enumerate(self.now.weights):
            visits = self.step % self.stride == 0 and age[client].max() > 0
            visitor = int(age[client].argmax()) if visits else None
            layout = lay_out(weights, np.ones(self.shape[1]), self.budget, visitor)
            self.now.certain[client, layout.certain] = True
            self.layouts.append(layout)
        return self.now

    def end(self, outputs: Floats, target: float) -> Floats:
        """[N] the losses of the drawn votes, once [N, K] outputs are fixed; then learn, late where it must be."""
        votes = np.zeros(self.shape)
        for client, layout in enumerate(self.layouts):
            chances, draws = zip(*layout.draws(self.now.weights[client]), strict=True)
            votes[client] = draws[int(self.random.choice(len(draws), p=np.array(chances) / sum(chances)))]
        held = (votes > 0) | self.now.certain
        self.now.outputs, self.now.known = outputs, np.zeros(self.shape, dtype=np.bool_)
        self.open.append(self.now)
        for past in self.open:
            if (held & ~past.known).any():
                past.known = past.known | held
                past.losses = relative(past, past.known, target)
        self.last[held] = self.step
        self.step += 1
        return np.asarray(((votes * outputs).sum(axis=1) - target) ** 2)

    def certificate(self, target: float) -> Floats:
        """[N] top_1/β + G_1 + mtop + mG with the gaps of all rounds, open ones completed."""
        sums = self.final
        for past in self.open:
            sums = self.replayed(sums, past, relative(past, np.ones_like(past.known), target))
        return np.asarray(self.top[:, 0] / self.share + sums[1][:, 0] + self.top_of_members + sums[3])

    def replayed(self, sums: Sums, past: Open, losses: Floats) -> Sums:
        cumulative, gaps, of_members, gap_of_members = sums
        incurred = np.einsum("njk,nk->nj", past.members, losses)
        mixed = mixes(cumulative, past.rates, losses[:, None] / self.memory[:, None])
        gaps = self.memory * gaps + np.maximum(0, incurred - self.memory * mixed)
        if len(self.memory) > 1:
            hedged = (past.votes_of_members * incurred).sum(axis=1)
            gap_of_members = gap_of_members + np.maximum(0, hedged - mixes(of_members, past.rate_of_members, incurred))
        return self.memory[:, None] * cumulative + losses[:, None], gaps, of_members + incurred, gap_of_members


def relative(past: Open, known: Flags, target: float) -> Floats:
    """[N, K] q on the known models, their weights renormalised; λ is the noise of the vote over the diversity."""
    weights = np.where(known, past.weights, 0) + 1e-300 * known
    weights = weights / weights.sum(axis=1, keepdims=True)
    centre = (weights * past.outputs).sum(axis=1, keepdims=True)
    others = np.where(past.certain, 0, weights)
    rho = others.sum(axis=1)
    share = others / np.maximum(rho, 1e-300)[:, None]
    mean, square = ((share * past.outputs**power).sum(axis=1) for power in (1, 2))
    diversity = (weights * (past.outputs - centre) ** 2).sum(axis=1)
    scale = np.clip(rho**2 * (square - mean**2) / np.maximum(diversity, 1e-15), 0, 1)[:, None]
    gaps = past.outputs - centre
    return np.asarray(2 * (centre - target) * gaps + scale * gaps**2)


def softmaxes(values: Floats) -> Floats:
    weights = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def mixes(cumulative: Floats, rate: Floats, losses: Floats) -> Floats:
    """-(1/η) ln ⟨softmax(-η Q), exp(-η q)⟩ along the last axis."""
    before, after = (log_sums(-rate[..., None] * each) for each in (cumulative, cumulative + losses))
    return np.asarray((before - after) / rate)


def log_sums(values: Floats) -> Floats:
    most = values.max(axis=-1, keepdims=True)
    return np.asarray(most[..., 0] + np.log(np.exp(values - most).sum(axis=-1)))
