"""Runs of late hedging through its sessions, on given outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Plan
from ofms.core.typing import AnyArray, Floats
from ofms.policies.fleet import Fleet
from ofms.policies.observations import Samples
from ofms.policies.session import ClientSession, ClientState, open_sessions
from tests.problems import policy_of

SEED = 3


@dataclass(frozen=True, eq=False)
class Planned:
    """An exchange that is planned, with the clients' state and the draws that it was planned with."""

    state: ClientState
    plan: Plan
    draws: Draws


def make_stream(clients: int, rounds: int, models: int, width: int, seed: int = 0) -> tuple[Floats, AnyArray]:
    """[N, T, K, C] outputs of networks of different skill, and [N, T] targets."""
    random = np.random.default_rng(seed)
    outputs = 1.5 * random.normal(size=(clients, rounds, models, width))
    if width == 1:
        targets = random.normal(size=(clients, rounds))
        outputs = targets[..., None, None] + outputs * random.random((clients, 1, models, 1))
        return outputs, targets
    classes = random.integers(0, width, size=(clients, rounds))
    right = np.eye(width)[classes][:, :, None]
    return outputs + 4 * random.random((clients, 1, models, 1)) * right, classes


def runs(fleet: Fleet, outputs: Floats, targets: AnyArray, **settings: Any) -> Iterator[Planned]:
    """All exchanges, each once it is planned; clients learn when the next one is asked for."""
    policy = policy_of("late-hedge", fleet, **{"fine_tuning_rate": 0.0} | settings)
    clients, servers = open_sessions(policy, fleet)
    state = clients.join(fleet.catalogue, fleet.budgets, np.arange(fleet.budgets.size))
    server = servers.open()
    for exchange in range(fleet.schedule.exchanges):
        draws = Draws(SEED, exchange)
        state, requests = clients.request(state, draws)
        server, grants = servers.grant(server, requests, draws)
        state, plan = clients.plan(state, grants)
        yield Planned(state, plan, draws)
        state = learnt(clients, state, plan, outputs, targets)


def learnt(session: ClientSession, state: ClientState, plan: Plan, outputs: Floats, targets: AnyArray) -> ClientState:
    """Learn from the samples of an exchange, and from past ones as far as the session asks for them."""
    first, stop = session.schedule.span(state.exchange)
    late = session.late(state, plan)
    assert late is not None
    length = int(late.max()) + stop - first
    back = stop - np.arange(stop - length, stop)[:, None]
    evaluated = plan.held[:, None] & (back <= late[:, None] + stop - first)
    some = np.where(evaluated[..., None], outputs[:, stop - length : stop], np.nan)
    samples = Samples.of(state.exchange, some, targets[:, first:stop])
    return session.learn(state, plan, np.zeros(plan.held.shape), samples)[0]
