"""Explore-then-commit: the best model on the first labels, for good. No fine-tuning.

The models are packed once into R bins that each fit the budget. In the first rounds a client holds one bin after the
other, each for an equal share of these rounds, so that it downloads every model once; a model's loss is its mean over
the rounds in which it was held. Meanwhile it predicts with the best so far among the models that it holds. Afterwards
it holds only the model of least mean loss and predicts with it. Means are compared over different samples, and
nothing is learnt after the commitment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ofms.core.declared import Doc
from ofms.core.draws import ClientDraws
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.selection import one_hot
from ofms.core.typing import Flags, Integers
from ofms.policies.bins import pack_bins
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.mean_losses import MeanLosses
from ofms.policies.observations import Observations
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import Count, LossBound


@dataclass(frozen=True)
class ExploreThenCommit:
    """Settings of the best model on the first labels."""

    exploration: Annotated[
        Count, Doc("Rounds of exploration; at least one exchange for each bin, so that every model is held.")
    ] = 50
    loss_bound: LossBound = "raw"


@dataclass(frozen=True, eq=False)
class State:
    """[N, K] bins and [N] their number, mean losses, the client's own count of exchanges, and the predicting model."""

    bin: Integers
    bins: Integers
    losses: MeanLosses
    exchanges: Integers
    committed: Flags
    chosen: Integers


@dataclass(frozen=True)
class Client:
    """Hold bin after bin for some `exchanges`, then the best model."""

    exchanges: int

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        place, bins = pack_bins(catalogue, budgets)
        zero, nobody = np.zeros(budgets.size, dtype=np.int64), np.zeros(budgets.size, dtype=np.bool_)
        return State(place, bins, MeanLosses.start(*place.shape), zero, nobody, zero)

    def adapt(self, state: State, change: Change) -> State:
        if change.same_models:
            place, bins = pack_bins(change.catalogue, change.budgets)
            return replace(state, bin=place, bins=bins)
        # Every model is explored again, also after a commitment.
        return replace(self.start(change.catalogue, change.budgets), losses=state.losses.adapt(change))

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        exploration = np.maximum(self.exchanges, state.bins)
        current = state.exchanges * state.bins // exploration
        # Once committed, the choice stays: a label that arrives late does not change it.
        leader = state.losses.leader(np.ones(state.bin.shape, dtype=np.bool_))
        chosen = np.where(state.committed, state.chosen, leader)
        commits = state.exchanges >= exploration
        wanted = np.where(commits[:, None], one_hot(chosen, state.bin.shape[1]) > 0, state.bin == current[:, None])
        return replace(state, exchanges=state.exchanges + 1, committed=commits, chosen=chosen), wanted

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        chosen = np.where(state.committed, state.chosen, state.losses.leader(grants.held))
        shape = grants.held.shape
        plan = Plan(grants.held, one_hot(chosen, shape[1]), np.ones(shape), np.zeros(shape))
        return replace(state, chosen=chosen), plan

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        return replace(state, losses=state.losses.add(seen.losses, plan.held))


def build(settings: ExploreThenCommit, fleet: Fleet) -> Policy:
    return Policy(
        client=Client(-(-settings.exploration // fleet.schedule.interval)),
        server=GrantingServer(),
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: one_hot(client.chosen, client.bin.shape[1]),
        not_covered="it does not learn after its commitment",
    )


algorithm = Algorithm(ExploreThenCommit, Client, build)
