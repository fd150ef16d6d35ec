"""Exchanges of a policy without networks: losses are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Grants, Plan, Reports, Requests
from ofms.core.states import flatten
from ofms.core.typing import Flags, Floats
from ofms.policies.fleet import Fleet
from ofms.policies.observations import Samples
from ofms.policies.protocol import Policy
from ofms.policies.server_session import ServerState
from ofms.policies.session import ClientSession, ClientState, expected_weights, open_sessions


@dataclass(frozen=True, eq=False)
class Exchange:
    """What both halves said in an exchange, and [N, K] expected prediction weights, [K] steps and states after it."""

    requests: Requests
    grants: Grants
    plan: Plan
    reports: Reports
    weights: Floats
    step: Floats
    client: ClientState
    server: ServerState


def as_plain(state: Any) -> dict[str, Any]:
    """A state or message as plain values that can be compared."""
    arrays, values = flatten(state)
    return values | {path: (array.shape, array.tobytes()) for path, array in arrays.items()}


def new_states(policy: Policy, fleet: Fleet) -> tuple[ClientState, ServerState]:
    """States of both halves before the first exchange."""
    clients, servers = open_sessions(policy, fleet)
    client = clients.join(fleet.catalogue, fleet.budgets, np.arange(fleet.budgets.size))
    return client, servers.open()


def planned(
    policy: Policy, fleet: Fleet, client: ClientState, server: ServerState, draws: Draws
) -> tuple[ClientState, ServerState, Requests, Plan]:
    """States of both halves once clients have their plan, with their requests."""
    clients, servers = open_sessions(policy, fleet)
    client, requests = clients.request(client, draws)
    server, grants = servers.grant(server, requests, draws)
    client, plan = clients.plan(client, grants)
    return client, server, requests, plan


def learnt(
    session: ClientSession, state: ClientState, plan: Plan, losses: Floats, known: Flags | None = None
) -> tuple[ClientState, Reports]:
    """Learn from [N, K] losses of an exchange: squared errors of models whose target is 0."""
    known = plan.held if known is None else known
    late, samples = session.late(state, plan), None
    first, stop = session.schedule.span(state.exchange)
    if late is not None:
        length = int(late.max()) + stop - first
        back = np.arange(length, 0, -1)[:, None]
        evaluated = known[:, None] & (back <= late[:, None] + stop - first)
        outputs = np.where(evaluated, np.sqrt(losses / (stop - first))[:, None], np.nan)[..., None]
        samples = Samples.of(state.exchange, outputs, np.zeros((losses.shape[0], stop - first)))
    return session.learn(state, plan, np.where(known, losses, np.nan), samples)


def losses_of(fleet: Fleet, seed: int, scale: float = 1.0) -> Floats:
    """[exchanges, N, K] random losses up to `scale`."""
    shape = (fleet.schedule.exchanges, fleet.budgets.size, len(fleet.catalogue))
    return np.asarray(scale * np.random.default_rng(seed).random(shape))


def run_exchanges(policy: Policy, fleet: Fleet, seed: int, losses: Floats) -> list[Exchange]:
    """Run all exchanges with [exchanges, N, K] losses; a half must not change the state that it is given."""
    clients, servers = open_sessions(policy, fleet)
    client, server = new_states(policy, fleet)
    history = []
    for exchange in range(len(losses)):
        draws = Draws(seed, exchange)
        before = as_plain(client), as_plain(server)
        after, requests = clients.request(client, draws)
        opened, grants = servers.grant(server, requests, draws)
        if (as_plain(client), as_plain(server)) != before:
            raise AssertionError("a half changed the state that it was given; return a new one")
        client, plan = clients.plan(after, grants)
        client, reports = learnt(clients, client, plan, losses[exchange])
        server, step = servers.absorb(opened, reports)
        weights = expected_weights(policy, client, server)
        history.append(Exchange(requests, grants, plan, reports, weights, np.asarray(step), client, server))
    return history
