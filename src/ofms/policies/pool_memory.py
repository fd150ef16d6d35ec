"""What a client holds, and the weights with which it predicts: certain models, a few drawn ones, and visitors.

There are two ways. Either the models with the most weight fill the budget, and the others are omitted. Or fewer are
certain, and for the others, a few places hold models drawn in proportion to their weights, each standing for an equal
share of the others' total weight ρ, so that the expected prediction weights are p. Now and then, visitors take places:
the models that were not held for longest, so that every model is evaluated on every sample while the client still has
it. What was held before and still fits stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.filling import Order, fill, storage

_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Held:
    """The models of an exchange.

    Attributes
    ----------
    held
        [N, K] the models held.
    certain, filling
        [N, K] the models that predict whatever is drawn, and those that predict if the others are omitted.
    prediction_weights
        [N, K] of mean p over the draw, or p of the models that fill the budget, normalised.
    expected
        [N, K] the mean of the prediction weights.
    inclusion
        [N, K] the probability of holding a model to predict with it; 0 for models that merely stay.
    outside
        [N] ρ, the weight of the models that are not certain.
    """

    held: Flags
    certain: Flags
    filling: Flags
    prediction_weights: Floats
    expected: Floats
    inclusion: Floats
    outside: Floats


def choose(
    weights: Floats,
    visitors: Flags,
    before: Flags,
    costs: Integers,
    budgets: Integers,
    uniform: Floats,
    *,
    keep: bool,
    omission: Floats | None = None,
    omitting: Flags | None = None,
) -> Held:
    """Fill [N] budgets, given [N, K] weights p, this exchange's visitors, and what was held before.

    Parameters
    ----------
    uniform
        [N, P] numbers in [0, 1), P more than any budget has places.
    omission, omitting
        [N] the probability that models that do not fit are omitted instead of drawn from, and whether they are.
    """
    never = np.zeros(len(budgets))
    omission, omitting = never if omission is None else omission, never > 0 if omitting is None else omitting
    # Clients come last, because NumPy is fastest along the last axis.
    weights, visitors, before = np.ascontiguousarray(weights.T), np.ascontiguousarray(visitors.T), before.T
    order = Order.falling(weights, costs)
    free = budgets - storage(visitors, costs)
    certain, places = _certain(weights, order, visitors, int(costs.max()), free)
    filling = visitors | order.back(fill(order.costs_of(~visitors), free))
    # Where everything fits, nothing is drawn.
    certain |= filling.all(axis=0)
    inside = weights * certain
    mass = inside.sum(axis=0)
    outside = np.maximum(0.0, 1 - mass)
    outside = np.where(outside < _ROUNDING, 0.0, outside)
    drawn, inclusion = _draw(weights - inside, outside, places, uniform)
    drawn *= outside / places
    # Nine ninths are more than 1 after rounding.
    rest = np.maximum(0.0, 1 - drawn.sum(axis=0))
    mixed = inside * (rest / np.where(mass > 0, mass, 1.0))
    mixed += drawn
    mixed /= mixed.sum(axis=0)
    omitted = weights * filling
    omitted /= omitted.sum(axis=0)
    held = np.where(omitting, filling, certain | (drawn > 0))
    if keep:
        held |= order.back(fill(order.costs_of(before & ~held), budgets - storage(held, costs)))
    # A certain model is not among those drawn: its probability of a draw is 0.
    inclusion += certain
    inclusion += omission * (filling - inclusion)
    expected = weights + omission * (omitted - weights)
    predicting = np.where(omitting, omitted, mixed)
    return Held(held.T, certain.T, filling.T, predicting.T, expected.T, inclusion.T, outside)


def longest_away(last_held: Integers, costs: Integers, budgets: Integers, exchange: int, most: int) -> Flags:
    """[N, K] up to `most` models that were not held for longest, leaving room for at least one that predicts."""
    models, last_held = last_held.shape[1], last_held.T
    number = np.arange(models)[:, None]
    away = last_held < exchange - 1
    # The first always fits: a budget holds any two models. Of several, it is the one of the lowest number.
    first = (last_held * np.int64(models) + number).min(axis=0) % models
    chosen: Flags = (number == first) & away
    if most == 1:
        return chosen.T
    order, others = Order.rising(last_held, costs), away & ~chosen
    room = budgets - int(costs.max()) - storage(chosen, costs)
    chosen |= order.back(fill(order.costs_of(others), room, most - chosen.sum(axis=0)))
    return chosen.T


def _certain(weights: Floats, order: Order, visitors: Flags, largest: int, free: Integers) -> tuple[Flags, Integers]:
    """The certain models and the number of places for draws: as few as leave each 1/n, n the models that predict."""
    clients = free.size
    chosen = np.zeros(weights.shape, dtype=np.bool_)
    places = np.ones(clients, dtype=np.int64)
    missing = 1 - (visitors * weights).sum(axis=0)
    active, costs, sorted_weights, draws = np.arange(clients), order.costs_of(~visitors), order.of(weights), 1
    while active.size:
        mine = fill(costs, free - draws * largest)
        n = np.add.reduce(mine, axis=0, dtype=np.int16) + draws
        outside = missing - (mine * sorted_weights).sum(axis=0)
        more = (outside > draws / n + _ROUNDING) & (free >= (draws + 1) * largest)
        done, more = np.flatnonzero(~more), np.flatnonzero(more)
        chosen[:, active[done]], places[active[done]] = mine.take(done, axis=1), draws
        if done.size:
            active, missing, free = active[more], missing[more], free[more]
            costs, sorted_weights = costs.take(more, axis=1), sorted_weights.take(more, axis=1)
        draws += 1
    return visitors | order.back(chosen), places


def _draw(others: Floats, outside: Floats, places: Integers, uniform: Floats) -> tuple[Floats, Floats]:
    """[K, N] how often each model was drawn, and the probability that it is drawn at least once.

    In place s of P, the model is drawn for which the cumulative weight, in units of ρ/P, exceeds s + uniform first.
    """
    share = others * (places / np.maximum(outside, _ROUNDING))
    high = share.copy()
    for below, sums in pairwise(high):
        sums += below
    place = np.minimum(np.floor(high), places - 1.0)
    column = place.astype(np.int64)
    column *= places.size
    column += np.arange(places.size)
    until = place + (uniform.T.take(column) < high - place)
    # Rounding leaves no draw without a model: it is of the last one that has a weight.
    for client in np.flatnonzero((outside > 0) & (until[-1] < places)).tolist():
        until[np.flatnonzero(others[:, client])[-1] :, client] = places[client]
    until[1:] -= until[:-1].copy()
    # A model covers a part of one place, or parts of two, or else a whole one.
    start = high - share
    start -= np.floor(start)
    # In these cases it is missed with probability 1 - share, start · (2 - start - share) and 0: the largest of them.
    missed = 2 - (start + share)
    missed *= start
    np.maximum(missed, np.subtract(1, share, out=share), out=missed)
    np.maximum(missed, 0.0, out=missed)
    return until, np.subtract(1, missed, out=missed)
