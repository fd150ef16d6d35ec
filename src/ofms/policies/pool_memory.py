"""What a client holds, and the weights with which it predicts: certain models, a few drawn ones, and visitors.

The models with the most weight that fit are certain. For the others, a few places hold models drawn in proportion to
their weights, each standing for an equal share of the others' total weight ρ, so that the expected prediction weights
are p. Now and then, visitors take places: the models that were not held for longest, so that every model is
evaluated on every sample while the client still has it. What was held before and still fits stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import Flags, Floats, Integers

_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Held:
    """The models of an exchange.

    Attributes
    ----------
    held, certain
        [N, K] the models held, and those among them whose vote does not depend on the draw.
    vote
        [N, K] prediction weights, of mean p over the draw.
    inclusion
        [N, K] the probability of holding a model for its vote; 0 for models that merely stay.
    outside, thinning
        [N] ρ, and the probability that a place is filled by a draw at all; less than 1 where ρ is small.
    """

    held: Flags
    certain: Flags
    vote: Floats
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
    order = np.argsort(-weights, axis=1, kind="stable")
    free = budgets - visitors @ costs
    certain, places, count = _certain(weights, order, visitors, costs, free)
    outside = np.maximum(0.0, 1 - np.where(certain, weights, 0.0).sum(axis=1))
    outside = np.where(outside < _ROUNDING, 0.0, outside)
    inside = np.where(certain, weights, 0.0)
    mass = inside.sum(axis=1)
    thinned = thin & (places == 1) & (outside > 0) & (outside < 1 / (count + 1)) & (mass > 0)
    thinning = np.where(thinned, np.minimum(1.0, count * outside / np.maximum(1 - outside, _ROUNDING)), 1.0)
    thinned = thinning < 1
    drawing = (outside > 0) & (~thinned | (uniform[:, 0] < thinning))
    drawn, inclusion = _draw(np.where(certain, 0.0, weights), outside, places, thinned, drawing, uniform)
    drawn = drawn * (outside / thinning / places)[:, None]
    rest = 1 - drawn.sum(axis=1)
    vote = drawn + inside * (rest / np.where(mass > 0, mass, 1.0))[:, None]
    held = certain | (drawn > 0)
    if keep:
        held |= fill(order, before & ~held, costs, budgets - held @ costs)
    empty = vote.sum(axis=1) < 1e-9
    vote = np.where(empty[:, None], held, vote)
    inclusion = np.where(certain, 1.0, inclusion * thinning[:, None])
    return Held(held, certain, vote / vote.sum(axis=1, keepdims=True), inclusion, outside, thinning)


def fill(order: Integers, candidates: Flags, costs: Integers, room: Integers) -> Flags:
    """[N, K] the candidates, in the given order, that fit into the room left by those before them."""
    chosen = np.zeros(candidates.shape, dtype=np.bool_)
    every, least, room = np.arange(room.size), int(costs.min()), room.copy()
    for place in range(order.shape[1]):
        if room.max(initial=0) < least:
            break
        model = order[:, place]
        fits = candidates[every, model] & (costs[model] <= room)
        chosen[every, model] |= fits
        room -= np.where(fits, costs[model], 0)
    return chosen


def longest_away(last_held: Integers, costs: Integers, budgets: Integers, exchange: int, most: int) -> Flags:
    """[N, K] up to `most` models that were not held for longest, leaving room for at least one that votes."""
    order = np.argsort(last_held, axis=1, kind="stable")
    away = last_held < exchange - 1
    chosen = np.zeros(away.shape, dtype=np.bool_)
    every, count, room = np.arange(budgets.size), np.zeros(budgets.size, dtype=np.int64), budgets - int(costs.max())
    for place in range(order.shape[1]):
        if (count == most).all():
            break
        model = order[:, place]
        # The first always fits: a budget holds any two models.
        fits = away[every, model] & (count < most) & ((count == 0) | (costs[model] <= room))
        chosen[every, model] |= fits
        count += fits
        room -= np.where(fits, costs[model], 0)
    return chosen


def _certain(
    weights: Floats, order: Integers, visitors: Flags, costs: Integers, free: Integers
) -> tuple[Flags, Integers, Integers]:
    """The certain models, the number of places for draws, and of all that vote: as few draws as leave each 1/n."""
    largest = int(costs.max())
    certain = visitors.copy()
    places = np.ones(free.size, dtype=np.int64)
    count = np.ones(free.size, dtype=np.int64)
    active = np.arange(free.size)
    draws = 1
    while active.size:
        some = visitors[active]
        mine = some | fill(order[active], ~some, costs, free[active] - draws * largest)
        n = mine.sum(axis=1) - some.sum(axis=1) + draws
        outside = 1 - np.where(mine, weights[active], 0.0).sum(axis=1)
        certain[active], places[active], count[active] = mine, draws, n
        done = (outside <= draws / n + _ROUNDING) | (free[active] - (draws + 1) * largest < 0)
        active, draws = active[~done], draws + 1
    return certain, places, count


def _draw(
    others: Floats, outside: Floats, places: Integers, thinned: Flags, drawing: Flags, uniform: Floats
) -> tuple[Floats, Floats]:
    """[N, K] how often each model was drawn, and the probability that it is drawn at least once."""
    edges = np.cumsum(others, axis=1)
    last = others.shape[1] - 1 - (others[:, ::-1] > 0).argmax(axis=1)
    drawn, missed = np.zeros(others.shape), np.ones(others.shape)
    every = np.arange(places.size)
    total = np.maximum(outside, _ROUNDING)
    for place in range(int(places.max(initial=1))):
        used = place < places
        u = np.where(thinned, uniform[:, 1], uniform[:, place])
        position = (place + u) / places * outside
        model = np.minimum((edges <= position[:, None]).sum(axis=1), last)
        drawn[every, model] += drawing & used
        low, high = place / places * total, (place + 1) / places * total
        overlap = np.minimum(edges, high[:, None]) - np.maximum(edges - others, low[:, None])
        share = np.clip(overlap, 0.0, None) * (places / total)[:, None]
        missed *= np.where(used[:, None], 1 - np.minimum(share, 1.0), 1.0)
    return drawn, 1 - missed
