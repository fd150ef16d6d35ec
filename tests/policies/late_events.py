"""Hedging with late losses while models come and go, on the parts of late hedging that do it: for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ofms.core.typing import Floats, Integers
from ofms.policies import late_adahedge, late_changes
from ofms.policies.late_rounds import Rounds
from ofms.policies.pool_memory import Held


@dataclass(eq=False)
class Member:
    """A model: its first round, how many rounds were open then, and what retirements since then cost, times η."""

    number: int
    first: int = 0
    open: int = 0
    retirements: float = 0.0


@dataclass(eq=False)
class Fleet:
    """One client; `losses` [T, M] of all models that there ever are, each known some rounds later."""

    losses: Floats
    delays: Integers
    memories: Floats
    models: list[Member]
    final: dict[int, tuple[float, dict[int, float], Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hedge = late_adahedge.start(1, len(self.models), self.memories.size)
        self.rounds = Rounds.none(1, len(self.models), self.memories.size)
        self.weights = np.full((1, len(self.models)), 1 / len(self.models))
        self.top = self.top_of_members = 0.0
        self.step = 0

    def predict(self) -> None:
        """Replay the open rounds, and begin the next one."""
        weights = self._advance()
        count = len(self.models)
        nothing, everything = np.zeros(1), np.ones((1, count), dtype=np.bool_)
        pooled, alone = weights.pooled, np.ones((1, 1))
        held = Held(everything, everything, everything, pooled, pooled, np.ones((1, count)), nothing)
        ways = late_adahedge.Weights(np.full((1, 1, 2), 0.5), alone, alone, np.ones(1))
        self.weights = weights.pooled
        self.top, self.top_of_members = float(self.hedge.peaks[0, 0]), float(self.hedge.member_peak[0])
        self.rounds = self.rounds.without_final().add(weights, ways, held, self.step)
        self.step += 1

    def change(self, retired: int | None, new: int | None) -> None:
        """A model goes, one comes, or both."""
        before = self.models
        kept = [place for place, each in enumerate(before) if each.number != retired]
        self.models = [before[place] for place in kept]
        if retired is not None:
            for each in self.models:
                each.retirements += math.log(len(before) / len(kept))
        if new is not None:
            self.models = [*self.models, Member(new, self.step, len(self.rounds))]
            kept.append(-1)
        places = np.array(kept)
        self.hedge = late_changes.with_models(self.hedge, self.weights, places)
        self.rounds = self.rounds.with_models(places)

    def finish(self) -> None:
        """All losses become known."""
        self.step += int(self.delays.max()) + 1
        self._advance()

    def bound(self, model: Member) -> float:
        """Section 14's bound on Σ (h - q(model)) from its arrival on, without the S of each round open at that time."""
        totals = self.hedge.totals
        price = self.top * (1 + model.retirements / math.log(len(self.models)))
        before = sum((self.final[number][2] for number in range(model.first)), np.zeros(self.memories.size))
        behind = float(before[0] - before.min())
        return price + float(totals.gaps[0, 0]) + self.top_of_members + float(totals.member_gaps[0]) + behind

    def regret(self, model: Member) -> float:
        """Σ (h - q(model)) from its arrival on."""
        later = range(model.first, len(self.final))
        return float(sum(self.final[number][0] - self.final[number][1][model.number] for number in later))

    def _advance(self) -> late_adahedge.Weights:
        numbers, models = self.rounds.number[0], [each.number for each in self.models]
        due = numbers[:, None] + self.delays[numbers][:, models] < self.step
        known = np.where(due, self.losses[numbers][:, models], np.nan)
        self.rounds = replace(self.rounds, losses=known[None])
        opened = self.rounds.open
        self.hedge, final, weights = late_adahedge.advance(self.hedge, opened, self.memories, 0, hints=True)
        for place in np.flatnonzero(final[0]).tolist():
            incurred = opened.members[0, place].astype(np.float64) @ known[place]
            hedged = float(opened.mixture[0, place] @ incurred)
            by_model = dict(zip(models, known[place].tolist(), strict=True))
            self.final.setdefault(int(numbers[place]), (hedged, by_model, incurred))
        self.rounds = self.rounds.mark(final)
        return weights
