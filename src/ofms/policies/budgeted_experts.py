"""Budgeted expert advice: exponential weights, with a random cluster of models observed beside the chosen one.

A client draws a model from its weights and explores with one cluster of a partition of all models that leaves room for
any chosen one. Clients learn alone, and nothing is fine-tuned: it is what selection under a budget comes to without
a federation. The clusters stand in for the authors' random queries: with costs c and a budget B, a model is observed
with a probability of at least 1/m, where m clusters of capacity B - max c take all models, which is what their regret
of O(√(C/B · T ln K)), C = Σ c, rests on.

References
----------
K. Amin, S. Kale, G. Tesauro, D. Turaga, "Budgeted Prediction With Expert Advice", AAAI 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ofms.core import selection
from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.packing import first_fit_decreasing
from ofms.core.rates import resolve_rate
from ofms.core.schedule import Schedule
from ofms.core.typing import Floats, Integers
from ofms.policies.protocol import Fleet, Policy, require_budgets, require_common_settings, versions_held
from ofms.policies.serving import GrantingServer


@dataclass(frozen=True)
class Settings:
    """Its open settings.

    Attributes
    ----------
    learning_rate
        η: a number, a number over √T, or `tuned` for √(2 ln K/(m n T)).
    loss_bound
        As in OFMS-FT.
    """

    learning_rate: float | str = "tuned"
    loss_bound: str = "clip"


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client remembers: its weights, its clusters, what it drew for the coming exchange, and what it holds."""

    client: Integers
    cluster: Integers
    clusters: Integers
    learning_rate: Floats
    cumulative_losses: Floats
    pmf: Floats
    chosen: Integers
    inclusion: Floats
    holding: Integers
    exchange: int = 0


@dataclass(frozen=True)
class Client:
    """Draw, observe, learn; alone."""

    learning_rate: float | str
    schedule: Schedule

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> ClientState:
        require_budgets(catalogue, budgets)
        cluster, clusters = explore_clusters(catalogue, budgets)
        shape = (clients.size, len(catalogue))
        rates = [_rate(self.learning_rate, len(catalogue), count, self.schedule) for count in clusters.tolist()]
        return ClientState(
            client=clients,
            cluster=cluster,
            clusters=clusters,
            learning_rate=np.array(rates),
            cumulative_losses=np.zeros(shape),
            pmf=np.full(shape, 1.0 / shape[1]),
            chosen=np.zeros(clients.size, dtype=np.int64),
            inclusion=np.ones(shape),
            holding=np.full(shape, -1),
        )

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        pmf = selection.probabilities(state.cumulative_losses, state.learning_rate)
        chosen = selection.draw_model(pmf, draws.uniform(Purpose.MODEL, state.client))
        drawn = selection.draw_cluster(state.clusters, draws.uniform(Purpose.CLUSTER, state.client))
        wanted = (state.cluster == drawn[:, None]) | (np.arange(pmf.shape[1]) == chosen[:, None])
        inclusion = pmf + (1 - pmf) / state.clusters[:, None]
        state = replace(state, pmf=pmf, chosen=chosen, inclusion=inclusion, exchange=draws.exchange)
        return state, Requests(draws.exchange, state.client, wanted, state.holding)

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        vote = (np.arange(state.pmf.shape[1]) == state.chosen[:, None]).astype(np.float64)
        state = replace(state, holding=versions_held(grants.held, grants.version))
        return state, Plan(grants.held, vote, state.inclusion, np.zeros(vote.shape))

    def learn(self, state: ClientState, plan: Plan, losses: Floats) -> tuple[ClientState, Reports]:
        estimates = selection.loss_estimates(losses, plan.held, plan.inclusion)
        cumulative = selection.update_weights(state.cumulative_losses, estimates)
        reports = Reports(state.exchange, state.client, None, np.zeros(plan.held.shape, dtype=np.bool_))
        return replace(state, cumulative_losses=cumulative), reports


def explore_clusters(catalogue: Catalogue, budgets: Integers) -> tuple[Integers, Integers]:
    """[N, K] the cluster of each model for clients of some budgets, and [N] how many there are."""
    largest = int(catalogue.storage.max())
    kinds, kind = np.unique(budgets, return_inverse=True)
    packings = [first_fit_decreasing(catalogue.storage, int(budget) - largest) for budget in kinds]
    cluster = np.stack([packing.bin for packing in packings])[kind]
    return cluster, np.array([packing.count for packing in packings])[kind]


def build(settings: Settings, fleet: Fleet) -> Policy:
    """Budgeted expert advice for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound)
    least = 2 * int(fleet.catalogue.storage.max())
    if fleet.budgets.min() < least:
        raise InvalidInput(
            "budget", f"{int(fleet.budgets.min())} bytes", f"it must hold the largest model twice; give {least} bytes"
        )
    models, schedule = len(fleet.catalogue), fleet.schedule
    _, clusters = explore_clusters(fleet.catalogue, fleet.budgets)
    rates = np.array([_rate(settings.learning_rate, models, count, schedule) for count in clusters.tolist()])
    bound, not_covered = None, ""
    if settings.loss_bound == "raw":
        not_covered = "the selection loss is not bounded"
    elif rates.min() == 0:
        not_covered = "a learning rate of 0 never learns"
    else:
        bound = math.log(models) / rates + rates * clusters * schedule.interval * schedule.rounds / 2
    return Policy(
        name="budgeted-experts",
        client=Client(settings.learning_rate, schedule),
        server=GrantingServer(None),
        local=None,
        loss_bound=settings.loss_bound,
        expected_vote=lambda client, server: client.pmf,
        bound=bound,
        not_covered=not_covered,
    )


def _rate(learning_rate: float | str, models: int, clusters: int, schedule: Schedule) -> float:
    tuned = math.sqrt(2 * math.log(models) / (clusters * schedule.interval * schedule.rounds))
    return resolve_rate("learning_rate", learning_rate, rounds=schedule.rounds, tuned=tuned)
