"""Subsets of models that fit a budget: random, the first ones, or a given list."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ofms.core.draws import ClientDraws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.single_model_server import find_model

Subset = Literal["random", "first"] | list[int | str]


def fill_budgets(priority: Floats, storage: Integers, budgets: Integers) -> Flags:
    """[N, K] models that fit: taken by increasing [N, K] priority, each if there is still room for it.

    With equal costs and random priorities, all subsets of the size that fits are equally likely.

    >>> fill_budgets(np.array([[0.3, 0.1, 0.2]]), np.array([2, 3, 2]), np.array([5])).tolist()
    [[False, True, True]]
    """
    held = np.zeros(priority.shape, dtype=np.bool_)
    room = budgets.copy()
    clients = np.arange(budgets.size)
    for model in np.argsort(priority, axis=1, kind="stable").T:
        fits = storage[model] <= room
        held[clients, model] = fits
        room -= np.where(fits, storage[model], 0)
    return held


def holding_probabilities(priority: Floats, storage: Integers, budgets: Integers) -> Floats:
    """[N, K] the probability that `fill_budgets` takes a model, given the order of the others by random priorities.

    A model is at each of the K places among the others with the same probability, and is taken at those where there is
    still room for it. Its indicator over this probability is 1 in expectation, whatever the costs; with equal costs the
    probability is the share of the models that fit.

    >>> holding_probabilities(np.array([[0.3, 0.1, 0.2]]), np.array([2, 2, 2]), np.array([5])) * 3
    array([[2., 2., 2.]])
    >>> holding_probabilities(np.array([[0.3, 0.1, 0.2]]), np.array([4, 3, 2]), np.array([5])) * 3
    array([[1., 3., 3.]])
    """
    # Column k: the room that the others leave if model k is left out.
    room = np.repeat(budgets[:, None], storage.size, axis=1)
    places = np.zeros(room.shape, dtype=np.int64)
    models = np.arange(storage.size)
    for model in np.argsort(priority, axis=1, kind="stable").T:
        other = models != model[:, None]
        places += other & (storage <= room)
        cost = storage[model][:, None]
        room -= np.where(other & (cost <= room), cost, 0)
    places += storage <= room
    return places / storage.size


def random_subset(storage: Integers, budgets: Integers, draws: ClientDraws) -> Flags:
    """[N, K] a random subset for each client, the same in every exchange."""
    return fill_budgets(draws.of_the_run().table(Purpose.SUBSET, storage.size), storage, budgets)


def fixed_subset(subset: Subset, catalogue: Catalogue, budgets: Integers) -> Flags | None:
    """[N, K] a subset without randomness: the `first` models that fit, or a given list; None for a random one."""
    shape = (budgets.size, len(catalogue))
    if subset == "random":
        return None
    if subset == "first":
        order = np.broadcast_to(np.arange(len(catalogue), dtype=np.float64), shape)
        return fill_budgets(order, catalogue.storage, budgets)
    return np.broadcast_to(named_subset(list(subset), catalogue), shape).copy()


def named_subset(subset: list[int | str], catalogue: Catalogue) -> Flags:
    """[K] flags of the models in a list."""
    named = np.zeros(len(catalogue), dtype=np.bool_)
    named[[find_model(catalogue, model) for model in subset]] = True
    return named


def most_upload(catalogue: Catalogue, budget: int) -> int:
    """An upper bound on the upload of any subset that fits: the fractional knapsack.

    >>> most_upload(Catalogue(("a", "b"), np.array([4, 4]), np.array([4, 2]), np.zeros(2, dtype=np.int64)), 6)
    5
    """
    room, total = budget, 0.0
    for model in np.argsort(-catalogue.upload / catalogue.storage, kind="stable").tolist():
        part = min(1.0, room / int(catalogue.storage[model]))
        total += part * int(catalogue.upload[model])
        room = max(0, room - int(catalogue.storage[model]))
    return math.floor(total)


def require_subset(subset: Subset, catalogue: Catalogue, budgets: Integers) -> None:
    """Reject a list of models that is empty, unknown, or too large for the smallest budget."""
    if isinstance(subset, str):
        return
    if len(subset) == 0:
        raise InvalidInput("subset", list(subset), "name at least one model")
    needed = int(catalogue.storage[named_subset(subset, catalogue)].sum())
    if needed > budgets.min():
        raise InvalidInput(
            "subset", list(subset), f"it takes {needed} bytes and a client has {int(budgets.min())}; name fewer models"
        )


def largest_upload(subset: Subset, catalogue: Catalogue, budget: int) -> int:
    """The largest possible upload of a client with this subset."""
    if isinstance(subset, str):
        return most_upload(catalogue, budget)
    return int(catalogue.upload[named_subset(subset, catalogue)].sum())
