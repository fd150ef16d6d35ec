"""Late hedging for one client, step by step in plain loops: slow, for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ofms.core.typing import Floats
from ofms.policies.late_hedge_settings import LateHedge
from tests.policies.hedging import Loss, divergence, log_loss, softmax, squared_error


@dataclass(eq=False)
class Past:
    """An exchange with the weights it was predicted with, and what is known of it."""

    number: int
    members: Floats
    mixture: Floats
    rates: list[float]
    mixture_rate: float
    ways: Floats
    ways_rate: float
    certain: set[int] = field(default_factory=set)
    filling: set[int] = field(default_factory=set)
    outside: float = 0.0
    known: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)
    ways_losses: Floats = field(default_factory=lambda: np.zeros(2))

    @property
    def weights(self) -> Floats:
        # Member by member, so that models of equal weight stay equal to the last bit.
        return np.asarray(sum(share * row for share, row in zip(self.mixture, self.members, strict=True)))


@dataclass(eq=False)
class Sums:
    """Discounted losses and gaps of the members, losses and gaps of hedging the members, and of the two ways."""

    losses: Floats
    gaps: list[float]
    of_members: Floats
    gap_of_members: float
    of_ways: Floats
    gap_of_ways: float


class OneClient:
    """A client that requests, predicts with `vote`, and learns, exchange by exchange; `shared` is the global model."""

    def __init__(
        self, costs: list[int], budget: int, settings: LateHedge, interval: int, shared: int | None = None
    ) -> None:
        # The global model stays where two others always fit beside it.
        roomy = settings.hold_global and shared is not None and costs[shared] + 2 * max(costs) <= budget
        self.pinned = [shared] if roomy and shared is not None else []
        self.costs, self.budget, self.settings, self.interval = costs, budget, settings, interval
        self.memories = [1.0 if length == 0 else (1 - 1 / length) ** interval for length in settings.memories]
        self.span = max(2, settings.window // interval)
        models, members = len(costs), len(self.memories)
        self.final = Sums(np.zeros((members, models)), [0.0] * members, np.zeros(members), 0.0, np.zeros(2), 0.0)
        self.peaks, self.peak_of_members, self.peak_of_ways = [0.0] * members, 0.0, 0.0
        self.hint_sums, self.finished = np.zeros(models), 0
        self.open: list[Past] = []
        self.last, self.held = [-1] * models, set[int]()
        self.vote, self.expected = np.zeros(models), np.zeros(models)
        self.exchange = 0

    def request(self, uniform: Floats, choice: float, way: float) -> None:
        """Decide what to hold and the vote.

        `choice` draws the one model that predicts, if the pool does not; `way` whether models that do not fit are
        omitted.
        """
        self._learn_weights()
        omission = {"drawn": 0.0, "omitted": 1.0, "hedged": float(self.now.ways[1])}[self.settings.outside]
        self._hold(self.now.weights, uniform.tolist(), omit=way < omission)
        filling = _only(self.now.weights, self.now.filling)
        self.expected = (1 - omission) * self.now.weights + omission * filling / filling.sum()
        # The vote is drawn with full precision; what is remembered of the weights has single precision.
        self.now.members = self.now.members.astype(np.float32).astype(np.float64)
        self.open.append(self.now)
        for model in self.held:
            self.last[model] = self.exchange
        if self.settings.predict == "one":
            drawn = min(int((np.cumsum(self.vote) <= choice).sum()), int(np.flatnonzero(self.vote)[-1]))
            self.vote = np.eye(len(self.costs))[drawn]

    def learn(self, outputs: Floats, targets: list[float]) -> None:
        """Learn with [T, K, C] poolable outputs and [T] targets so far, of which those of held models are used."""
        for past in self.open if self.settings.late else self.open[-1:]:
            if not self.held <= past.known:
                past.known |= self.held
                samples = range(past.number * self.interval, min((past.number + 1) * self.interval, len(targets)))
                each = [self._relative(past, outputs[sample], targets[sample]) for sample in samples]
                past.losses = {model: sum(losses[model] for losses in each) for model in past.known}
                ways = [_of_ways(past, outputs[sample], targets[sample]) for sample in samples]
                past.ways_losses = np.sum(ways, axis=0) if ways else np.zeros(2)
        self.exchange += 1

    def _learn_weights(self) -> None:
        """Replay the exchanges that are not final, with hints for what is not known."""
        models, now, complete = len(self.costs), self.final, True
        hint = self.hint_sums / max(1, self.finished) if self.settings.hints else np.zeros(models)
        kept = []
        for past in self.open:
            losses = np.array([past.losses.get(model, hint[model]) for model in range(models)])
            now = self._after(now, past, losses)
            expired = past.number <= self.exchange - self.span
            complete = complete and (expired or len(past.known) == models)
            if complete:
                self.final = now
                self.hint_sums, self.finished = self.hint_sums + losses, self.finished + 1
            else:
                kept.append(past)
        self.open = kept
        self.peaks = [max(g * top, gap) for g, top, gap in zip(self.memories, self.peaks, now.gaps, strict=True)]
        self.peak_of_members = max(self.peak_of_members, now.gap_of_members)
        self.peak_of_ways = max(self.peak_of_ways, now.gap_of_ways)
        ways_rate = _rate(2, self.peak_of_ways)
        rates = [_rate(models, peak, self.settings.rate) for peak in self.peaks]
        rate = _rate(len(self.memories), self.peak_of_members)
        members = np.stack([softmax(-eta * losses) for eta, losses in zip(rates, now.losses, strict=True)])
        ways = softmax(-ways_rate * now.of_ways)
        self.now = Past(self.exchange, members, softmax(-rate * now.of_members), rates, rate, ways, ways_rate)
        self.weights = self.now.weights

    def _after(self, before: Sums, past: Past, losses: Floats) -> Sums:
        incurred = past.members @ losses
        gaps = []
        for member, gamma in enumerate(self.memories):
            mixed = gamma * _mixed(before.losses[member], past.rates[member], losses / gamma)
            gaps.append(gamma * before.gaps[member] + max(0.0, float(incurred[member]) - mixed))
        hedged = float(past.mixture @ incurred) - _mixed(before.of_members, past.mixture_rate, incurred)
        discounted = np.stack([g * row + losses for g, row in zip(self.memories, before.losses, strict=True)])
        ways = past.ways_losses
        gap = max(0.0, float(past.ways @ ways) - _mixed(before.of_ways, past.ways_rate, ways))
        members = before.of_members + incurred, before.gap_of_members + max(0.0, hedged)
        return Sums(discounted, gaps, *members, before.of_ways + ways, before.gap_of_ways + gap)

    def _visitors(self) -> list[int]:
        """The models that were away for longest, as many as bring all of them here while samples are kept."""
        models = len(self.costs)
        every = self.settings.visit_every or max(1, self.span // models)
        if self.exchange % every:
            return []
        found: list[int] = []
        room = self.budget - max(self.costs) - sum(self.costs[model] for model in self.pinned)
        for model in sorted(range(models), key=lambda model: self.last[model]):
            enough = len(found) == math.ceil(models * every / self.span)
            if not enough and self.last[model] < self.exchange - 1 and (not found or self.costs[model] <= room):
                found.append(model)
                room -= self.costs[model]
        return found

    def _fill(self, order: list[int], models: set[int], room: int) -> set[int]:
        """Models and, in order, those that fit beside them."""
        found = set(models)
        for model in order:
            if model not in found and self.costs[model] <= room:
                found.add(model)
                room -= self.costs[model]
        return found

    def _hold(self, weights: Floats, uniform: list[float], *, omit: bool) -> None:
        visitors = sorted({*self._visitors(), *self.pinned})
        free = self.budget - sum(self.costs[model] for model in visitors)
        order = sorted(range(weights.size), key=lambda model: -weights[model])
        draws, largest = 0, max(self.costs)
        while True:
            draws += 1
            room, certain = free - draws * largest, list(visitors)
            for model in order:
                if model not in visitors and self.costs[model] <= room:
                    certain.append(model)
                    room -= self.costs[model]
            places = len(certain) - len(visitors) + draws
            outside = 1 - float(weights[certain].sum())
            if outside <= draws / places + 1e-12 or free < (draws + 1) * largest:
                break
        filling = self._fill(order, set(visitors), free)
        if len(filling) == weights.size:
            certain, outside = list(range(weights.size)), 0.0
        outside = 0.0 if outside < 1e-12 else outside
        others = [model for model in range(weights.size) if model not in certain]
        inside = float(weights[certain].sum())
        positions = [(place + uniform[place]) / draws for place in range(draws)]
        vote = np.zeros(weights.size)
        for position in positions if outside > 0 else []:
            edges = np.cumsum(weights[others])
            place = min(int((edges <= position * outside).sum()), int(np.flatnonzero(weights[others])[-1]))
            vote[others[place]] += outside / draws
        held = set(certain) | set(np.flatnonzero(vote).tolist())
        if inside > 0:
            vote[certain] = (1 - vote.sum()) * weights[certain] / inside
        if omit:
            held = filling
            vote = _only(weights, filling)
        room = self.budget - sum(self.costs[model] for model in held)
        if self.settings.keep:
            held = self._fill([model for model in order if model in self.held], held, room)
        self.held, self.vote = held, vote / vote.sum()
        self.now.certain, self.now.filling, self.now.outside = set(certain), filling, outside

    def _relative(self, past: Past, outputs: Floats, target: float) -> dict[int, float]:
        loss = _loss(outputs, target)
        known = sorted(past.known)
        shares = _shares(past, known)
        centre = shares @ outputs[known]
        gaps = {model: max(0.0, divergence(loss, outputs[model], centre)) for model in known}
        spread = sum(float(share) * gaps[model] for share, model in zip(shares, known, strict=True))
        price = min(1.0, _noise(past, outputs, loss) / spread) if spread > 1e-15 else 0.0
        if self.settings.loss == "plain":
            price = 1.0
        slope = loss(centre)[1]
        return {model: float(slope @ (outputs[model] - centre)) + price * gaps[model] for model in known}


def _loss(outputs: Floats, target: float) -> Loss:
    return squared_error(target) if outputs.shape[1] == 1 else log_loss(int(target))


def _only(weights: Floats, models: set[int]) -> Floats:
    """The weights of some models, 0 for the others."""
    return np.where(np.isin(np.arange(weights.size), sorted(models)), weights, 0.0)


def _shares(past: Past, models: list[int]) -> Floats:
    """The weights of some models, normalised."""
    total = float(past.weights[models].sum())
    return past.weights[models] / total if total > 1e-12 else np.full(len(models), 1 / len(models))


def _of_ways(past: Past, outputs: Floats, target: float) -> Floats:
    """What drawing and what omitting cost more than the pool of all known models."""
    loss, known = _loss(outputs, target), sorted(past.known)
    centre = _shares(past, known) @ outputs[known]
    filling = sorted(past.known & past.filling)
    if past.weights[filling].sum() <= 1e-12:
        return np.array([_noise(past, outputs, loss), 0.0])
    pool = _shares(past, filling) @ outputs[filling]
    return np.array([_noise(past, outputs, loss), loss(pool)[0] - loss(centre)[0]])


def _noise(past: Past, outputs: Floats, loss: Loss) -> float:
    """What the draw costs in expectation, as far as models are known."""
    inside = [model for model in sorted(past.known) if model in past.certain and past.weights[model] > 0]
    others = [model for model in sorted(past.known) if model not in past.certain]
    chances = past.weights[others]
    if past.outside == 0 or chances.sum() <= 1e-12:
        return 0.0
    chances = chances / chances.sum()
    drawn = [outputs[model] for model in others]
    mean = chances @ outputs[others]
    if not inside:
        pools = [mean + past.outside * (each - mean) for each in drawn]
        return float(chances @ [divergence(loss, pool, mean) for pool in pools])
    calm = past.weights[inside] @ outputs[inside] / past.weights[inside].sum()
    centre = (1 - past.outside) * calm + past.outside * mean
    pools = [(1 - past.outside) * calm + past.outside * each for each in drawn]
    return float(chances @ [divergence(loss, pool, centre) for pool in pools])


def _rate(experts: int, peak: float, share: float = 1.0) -> float:
    return max(min(share * math.log(experts) / max(peak, 1e-9), 1e6), 1e-9)


def _mixed(cumulative: Floats, rate: float, losses: Floats) -> float:
    """-(1/η) ln ⟨softmax(-η S), exp(-η r)⟩."""
    return (_log_sum(-rate * cumulative) - _log_sum(-rate * (cumulative + losses))) / rate


def _log_sum(values: Floats) -> float:
    largest = float(values.max())
    return largest + math.log(np.exp(values - largest).sum())
