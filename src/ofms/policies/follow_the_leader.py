"""Follow the leader over what is held. No fine-tuning.

A model's loss is its mean over the rounds in which the client held it. In every exchange a client holds the leader, the
model of least mean loss so far, and fills the rest of its memory with the other models in turn: those not held for the
longest time first, each if it still fits. It predicts with the model of least mean loss among those that it holds: the
leader, or in the first exchange, in which no model has been observed, the first one. Means are compared over different
samples, so a model that was held in easy rounds leads until it has been held in others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core.draws import ClientDraws
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.selection import one_hot
from ofms.core.typing import Flags, Integers
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.mean_losses import MeanLosses
from ofms.policies.observations import Observations
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import LossBound
from ofms.policies.subsets import fill_budgets


@dataclass(frozen=True)
class FollowTheLeader:
    """Settings of following the leader."""

    loss_bound: LossBound = "raw"


@dataclass(frozen=True, eq=False)
class State:
    """Mean losses, the [N, K] exchange in which each model was last held (-1: never), and [N] the predicting model."""

    storage: Integers
    budgets: Integers
    losses: MeanLosses
    last_held: Integers
    chosen: Integers


@dataclass(frozen=True)
class Client:
    """Hold the leader and, in turn, the others; predict with the leader."""

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        shape, chosen = (budgets.size, len(catalogue)), np.zeros(budgets.size, dtype=np.int64)
        return State(catalogue.storage, budgets, MeanLosses.start(*shape), np.full(shape, -1), chosen)

    def adapt(self, state: State, change: Change) -> State:
        fresh = self.start(change.catalogue, change.budgets)
        return replace(fresh, losses=state.losses.adapt(change), last_held=change.carried(state.last_held, -1))

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        leader = state.losses.leader(np.ones(state.last_held.shape, dtype=np.bool_))
        priority = np.where(one_hot(leader, state.storage.size) > 0, -np.inf, state.last_held)
        wanted = fill_budgets(priority, state.storage, state.budgets)
        return replace(state, last_held=np.where(wanted, draws.draws.exchange, state.last_held)), wanted

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        chosen = state.losses.leader(grants.held)
        shape = grants.held.shape
        plan = Plan(grants.held, one_hot(chosen, shape[1]), np.ones(shape), np.zeros(shape))
        return replace(state, chosen=chosen), plan

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        return replace(state, losses=state.losses.add(seen.losses, plan.held))


def build(settings: FollowTheLeader, fleet: Fleet) -> Policy:
    return Policy(
        client=Client(),
        server=GrantingServer(),
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: one_hot(client.chosen, client.storage.size),
        not_covered="an adversary makes the leader lose in every round",
    )


algorithm = Algorithm(FollowTheLeader, Client, build)
