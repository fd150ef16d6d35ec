"""A policy while models come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Requests
from ofms.core.typing import Integers
from ofms.policies.changes import Slots
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.server_session import ServerSession
from ofms.policies.session import ClientSession, expected_weights
from ofms.testing.checks import require
from ofms.testing.exchanges import learnt
from ofms.testing.fleets import catalogue_of

Sessions = tuple[ClientSession, ServerSession]


def check_changing_models(build: Callable[[Fleet], Policy], fleet: Fleet, seed: int) -> None:
    """A retired model is never requested, a new one may be; weights are probabilities; the same alone and together."""
    random = np.random.default_rng(seed)
    whole, largest = len(fleet.catalogue) + 1, int(fleet.catalogue.storage.max())
    catalogue = catalogue_of([*fleet.catalogue.storage.tolist(), int(random.integers(1, largest + 1))])
    wide = replace(fleet, catalogue=catalogue)
    retired = int(random.integers(0, whole - 1))
    kept = np.array([slot for slot in range(whole) if slot != retired])
    sessions: list[Sessions] = []
    for slots in (Slots.of(whole, np.arange(whole - 1)), Slots.of(whole, kept)):
        policy = build(replace(fleet, catalogue=slots.catalogue(catalogue)))
        sessions.append((ClientSession(policy, fleet.schedule, slots), ServerSession(policy, wide, slots)))
    numbers = np.arange(fleet.budgets.size)
    groups = [numbers] if numbers.size == 1 else [numbers, *(numbers[index : index + 1] for index in numbers)]
    results = [_changed(sessions[0], sessions[1], catalogue, fleet, own, retired, seed) for own in groups]
    if len(groups) > 1:
        alone = np.concatenate([requests.wanted for requests in results[1:]])
        require((alone == results[0].wanted).all(), "after a change, a client requests other models alone")


def _changed(
    before: Sessions, after: Sessions, catalogue: Catalogue, fleet: Fleet, own: Integers, retired: int, seed: int
) -> Requests:
    """Requests of the clients `own` in the exchange after the change."""
    (clients, servers), (later, serving) = before, after
    budgets, shape = fleet.budgets[own], (fleet.budgets.size, len(catalogue))
    client, server = clients.join(catalogue, budgets, own), servers.open()
    for exchange in range(2):
        draws = Draws(seed, exchange)
        client, requests = clients.request(client, draws)
        server, grants = servers.grant(server, requests, draws)
        client, plan = clients.plan(client, grants)
        losses = np.random.default_rng(exchange).random(shape)[own]
        client, reports = learnt(clients, client, plan, losses)
        server, _ = servers.absorb(server, reports)
    client = later.adapt(client, clients, catalogue, budgets)
    server = serving.adapt(server, servers)
    draws = Draws(seed, 2)
    client, requests = later.request(client, draws)
    server, grants = serving.grant(server, requests, draws)
    client, plan = later.plan(client, grants)
    weights = expected_weights(serving.policy, client, server, later.slots)
    require(np.allclose(weights.sum(axis=1), 1), "after a change, weights do not sum to one")
    require(not plan.held[:, retired].any(), "a retired model is held")
    require((weights[:, retired] == 0).all(), "a retired model has weight")
    require(((plan.held @ catalogue.storage) <= budgets).all(), "after a change, a client holds more than its budget")
    learnt(later, client, plan, np.random.default_rng(9).random(shape)[own])
    return requests
