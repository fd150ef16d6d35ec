"""What a client holds, and the weights with which it predicts: certain models, a few drawn ones, and visitors.

The models with the most weight that fit are certain. For the others, a few places hold models drawn in proportion to
their weights, each standing for an equal share of the others' total weight ρ, so that the expected prediction weights
are p. Now and then, visitors take places: the models that were not held for longest, so that every model is
evaluated on every sample while the client still has it. What was held before and still fits stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers

_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Held:
    """The models of an exchange.

    Attributes
    ----------
    held, certain
        [N, K] the models held, and those among them that predict whatever is drawn.
    prediction_weights
        [N, K] of mean p over the draw.
    inclusion
        [N, K] the probability of holding a model to predict with it; 0 for models that merely stay.
    outside, thinning
        [N] ρ, and the probability that a place is filled by a draw at all; less than 1 where ρ is small.
    """

    held: Flags
    certain: Flags
    prediction_weights: Floats
    inclusion: Floats
    outside: Floats
    thinning: Floats


def choose(
    weights: Floats,
    visitors: Flags,
    before: Flags,
    costs: Integers,
    budgets: Integers,
    uniform: Floats,
    *,
    thin: bool = True,
    keep: bool = True,
) -> Held:
    """Fill [N] budgets, given [N, K] weights p, this exchange's visitors, and what was held before.

    `uniform` [N, P] are numbers in [0, 1), P more than any budget has places.
    """
    order = _Order.by(-weights, costs)
    free = budgets - visitors @ costs
    certain, places, count = _certain(weights, order, visitors, int(costs.max()), free)
    inside = certain * weights
    mass = inside.sum(axis=1)
    outside = np.maximum(0.0, 1 - mass)
    outside = np.where(outside < _ROUNDING, 0.0, outside)
    thinned = thin & (places == 1) & (outside > 0) & (outside < 1 / (count + 1)) & (mass > 0)
    thinning = np.where(thinned, np.minimum(1.0, count * outside / np.maximum(1 - outside, _ROUNDING)), 1.0)
    thinned = thinning < 1
    drawing = (outside > 0) & (~thinned | (uniform[:, 0] < thinning))
    drawn, inclusion = _draw(weights - inside, outside, places, thinned, drawing, uniform)
    drawn = drawn * (outside / thinning / places)[:, None]
    rest = 1 - drawn.sum(axis=1)
    mixed = drawn + inside * (rest / np.where(mass > 0, mass, 1.0))[:, None]
    held = certain | (drawn > 0)
    if keep:
        held |= order.back(_fill(order.costs, order.of(before & ~held), budgets - held @ costs))
    empty = mixed.sum(axis=1) < 1e-9
    mixed[empty] = held[empty]
    inclusion = np.where(certain, 1.0, inclusion * thinning[:, None])
    return Held(held, certain, mixed / mixed.sum(axis=1, keepdims=True), inclusion, outside, thinning)


def longest_away(last_held: Integers, costs: Integers, budgets: Integers, exchange: int, most: int) -> Flags:
    """[N, K] up to `most` models that were not held for longest, leaving room for at least one that predicts."""
    every, first = np.arange(budgets.size), last_held.argmin(axis=1)
    away = last_held < exchange - 1
    chosen = np.zeros(away.shape, dtype=np.bool_)
    # The first always fits: a budget holds any two models.
    chosen[every, first] = away[every, first]
    if most == 1:
        return chosen
    order = _Order.by(last_held, costs)
    others = order.of(away & ~chosen)
    count, room = chosen.sum(axis=1), budgets - int(costs.max()) - chosen @ costs
    return chosen | order.back(_fill(order.costs, others, room, most - count))


@dataclass(frozen=True, eq=False)
class _Order:
    """[K, N] models in order, for each client: where they are in [N, K] arrays, and their costs.

    Clients come last, because NumPy is fastest along the last axis.
    """

    place: Integers
    costs: Integers

    @classmethod
    def by(cls, keys: AnyArray, costs: Integers) -> _Order:
        """By rising keys [N, K]."""
        order = np.ascontiguousarray(np.argsort(keys, axis=1, kind="stable").T)
        models, clients = order.shape
        return cls(order + models * np.arange(clients), costs[order])

    def of(self, values: AnyArray) -> AnyArray:
        """[K, N] values in order, of those [N, K] by model."""
        return values.take(self.place)

    def back(self, values: AnyArray) -> AnyArray:
        """[N, K] values by model, of those [K, N] in order."""
        made = np.empty(values.size, dtype=values.dtype)
        made[self.place] = values
        return made.reshape(values.shape[::-1])


def _fill(costs: Integers, candidates: Flags, room: Integers, most: Integers | None = None) -> Flags:
    """[K, N] the candidates, in order, that fit into the room left by those before them, at most so many."""
    chosen = np.zeros(candidates.shape, dtype=np.bool_)
    least, room = int(costs.min(initial=0)), room.copy()
    for cost, candidate, fits in zip(costs, candidates, chosen, strict=True):
        if room.max(initial=0) < least:
            break
        np.less_equal(cost, room, out=fits)
        fits &= candidate
        if most is not None:
            fits &= most > 0
            most = most - fits
        room -= cost * fits
    return chosen


def _certain(
    weights: Floats, order: _Order, visitors: Flags, largest: int, free: Integers
) -> tuple[Flags, Integers, Integers]:
    """The certain models, the number of places for draws, and of all that predict: as few draws as leave each 1/n."""
    clients = free.size
    chosen, candidates = np.zeros(order.costs.shape, dtype=np.bool_), ~order.of(visitors)
    places, count = np.ones(clients, dtype=np.int64), np.ones(clients, dtype=np.int64)
    missing = 1 - (visitors * weights).sum(axis=1)
    active, costs, sorted_weights, draws = np.arange(clients), order.costs, order.of(weights), 1
    while active.size:
        mine = _fill(costs, candidates, free - draws * largest)
        n = mine.sum(axis=0) + draws
        chosen[:, active], places[active], count[active] = mine, draws, n
        outside = missing - (mine * sorted_weights).sum(axis=0)
        more = np.flatnonzero((outside > draws / n + _ROUNDING) & (free >= (draws + 1) * largest))
        active, missing, free, draws = active[more], missing[more], free[more], draws + 1
        costs, candidates, sorted_weights = (part.take(more, axis=1) for part in (costs, candidates, sorted_weights))
    return visitors | order.back(chosen), places, count


def _draw(
    others: Floats, outside: Floats, places: Integers, thinned: Flags, drawing: Flags, uniform: Floats
) -> tuple[Floats, Floats]:
    """[N, K] how often each model was drawn, and the probability that it is drawn at least once.

    In place s of P, the model is drawn for which the cumulative weight, in units of ρ/P, exceeds s + uniform first.
    """
    scale = places / np.maximum(outside, _ROUNDING)
    share = others * scale[:, None]
    high = np.cumsum(share, axis=1)
    place = np.minimum(np.floor(high), places[:, None] - 1.0)
    column = place.astype(np.int64)
    column[thinned] = 1
    column += uniform.shape[1] * np.arange(places.size)[:, None]
    until = place + (uniform.take(column) < high - place)
    # Rounding leaves no draw without a model.
    last = others.shape[1] - 1 - (others[:, ::-1] > 0).argmax(axis=1)
    until = np.where(np.arange(others.shape[1]) >= last[:, None], places[:, None], until)
    drawn = until * drawing[:, None]
    drawn[:, 1:] -= drawn[:, :-1].copy()
    # A model covers a part of one place, or parts of two, or else a whole one.
    start = high - share
    start -= np.floor(start)
    end = start + share
    missed = np.where(end <= 1, 1 - share, start * np.maximum(2 - end, 0.0))
    return drawn, 1 - missed
