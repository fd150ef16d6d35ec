"""OFMS-FT: online federated model selection and fine-tuning (alg:6 of the paper).

A client draws a model from its weights, fills its memory with a random cluster of the other models, predicts with the
drawn one and learns from the losses of all models that it holds. One random group of clients uploads its updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core import selection
from ofms.core.draws import ClientDraws, Purpose
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.new_experts import carry_losses
from ofms.core.packing import PartitionTable, largest_cluster_upload, partition_models
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies import ofms_ft_theory as theory
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.local_updates import GradientStep
from ofms.policies.observations import Observations
from ofms.policies.ofms_ft_settings import OFMSFT, GradientWeight
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.rates import RateByBudget, rates_of


@dataclass(frozen=True, eq=False)
class State:
    """[N, K] cumulative loss estimates, and the draw of the current exchange."""

    table: PartitionTable
    learning_rate: Floats
    cumulative_losses: Floats
    chosen: Integers
    inclusion: Floats


@dataclass(frozen=True, eq=False)
class StateByUse(State):
    """With [N, K] the probabilities p of the current draw."""

    pmf: Floats


@dataclass(frozen=True)
class Client:
    """alg:6, steps 5 to 10 and 16 to 19; the other steps are the server's."""

    rates: RateByBudget
    importance_cap: float | None = None
    gradient_weight: GradientWeight = "inverse"

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        shape, chosen = (budgets.size, len(catalogue)), np.zeros(budgets.size, dtype=np.int64)
        table = partition_models(catalogue.storage, budgets)
        state = State(table, rates_of(self.rates, budgets), np.zeros(shape), chosen, np.ones(shape))
        return state if self.gradient_weight == "inverse" else StateByUse(**vars(state), pmf=np.zeros(shape))

    def adapt(self, state: State, change: Change) -> State:
        fresh = self.start(change.catalogue, change.budgets)
        losses = carry_losses(state.cumulative_losses, change.kept, fresh.learning_rate)
        return replace(fresh, cumulative_losses=losses)

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        losses, rate, uniform = state.cumulative_losses, state.learning_rate, draws.uniform
        drawn = selection.draw_sets(losses, rate, state.table, uniform(Purpose.MODEL), uniform(Purpose.CLUSTER))
        if isinstance(state, StateByUse):
            state = replace(state, pmf=selection.probabilities(losses, rate))
        return replace(state, chosen=drawn.chosen, inclusion=drawn.inclusion), drawn.held

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        held, uploads, groups = grants.held, grants.uploads, grants.groups
        if isinstance(state, StateByUse):
            weight = selection.use_weights(held, state.pmf, state.inclusion, uploads, groups)
        else:
            weight = selection.importance_weights(held, state.inclusion, uploads, groups, self.importance_cap)
        return state, Plan(held, selection.one_hot(state.chosen, held.shape[1]), state.inclusion, weight)

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        estimates = selection.loss_estimates(seen.losses, plan.held, plan.inclusion)
        return replace(state, cumulative_losses=selection.update_weights(state.cumulative_losses, estimates))


def build(settings: OFMSFT, fleet: Fleet) -> Policy:
    table = partition_models(fleet.catalogue.storage, fleet.budgets)
    fleet.require_upload(largest_cluster_upload(fleet.catalogue.upload, table))
    rates = theory.learning_rates(settings.learning_rate, fleet, table)
    by_budget = dict(zip(table.budgets.tolist(), rates.tolist(), strict=True))
    rate = theory.fine_tuning_rate(settings, fleet, table)
    bound, not_covered = theory.client_bound(settings.loss_bound, rates, rate, fleet, table)
    return Policy(
        client=Client(by_budget, settings.importance_cap, settings.gradient_weight),
        server=GrantingServer(settings.server_step),
        local=GradientStep(rate, settings.window, settings.warm_up),
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: selection.probabilities(client.cumulative_losses, client.learning_rate),
        bound=bound,
        not_covered=not_covered,
    )


algorithm = Algorithm(OFMSFT, Client, build)
