"""RMS-FT: every client holds and fine-tunes a random subset that fits its memory; a random model of it predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ofms.core import selection
from ofms.core.declared import Doc
from ofms.core.draws import ClientDraws, Purpose
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.rates import resolve_rate
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.local_updates import GradientStep
from ofms.policies.observations import Observations
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import FineTuningRate, LossBound, ServerStep, WarmUp, Window
from ofms.policies.subsets import fill_budgets, holding_probabilities, most_upload

GradientWeight = Literal["inverse", "one", "use"]


@dataclass(frozen=True)
class RMSFT:
    """Settings of RMS-FT, which the paper leaves open."""

    gradient_weight: Annotated[
        GradientWeight,
        Doc(
            "The weight of a held model's gradient: inverse for one over the probability that it is held; one; or "
            "use for the probability that it predicts, 1 over the number of held models.",
            "inverse, with equal costs: K over the number of held models (2r2)",
        ),
    ] = "inverse"
    fine_tuning_rate: FineTuningRate = 0.001
    server_step: ServerStep = 1
    window: Window = 1
    warm_up: WarmUp = 0
    loss_bound: LossBound = "clip"


@dataclass(frozen=True, eq=False)
class State:
    """The clients' draws for the current exchange, by whose probability gradients are divided, and their budgets."""

    storage: Integers
    budgets: Integers
    wanted: Flags
    chosen: Integers
    inclusion: Floats


@dataclass(frozen=True)
class Client:
    """Draw a new subset in every exchange; learn nothing."""

    gradient_weight: GradientWeight

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        shape = (budgets.size, len(catalogue))
        chosen = np.zeros(budgets.size, dtype=np.int64)
        return State(catalogue.storage, budgets, np.zeros(shape, dtype=np.bool_), chosen, np.ones(shape))

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        priority = draws.table(Purpose.SUBSET, state.storage.size)
        wanted = fill_budgets(priority, state.storage, state.budgets)
        chosen = selection.draw_model(uniform_over(wanted), draws.uniform(Purpose.MODEL))
        inclusion = state.inclusion
        if self.gradient_weight == "inverse":
            inclusion = holding_probabilities(priority, state.storage, state.budgets)
        return replace(state, wanted=wanted, chosen=chosen, inclusion=inclusion), wanted

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        chosen = selection.one_hot(state.chosen, state.storage.size)
        weight = selection.importance_weights(grants.held, state.inclusion, grants.uploads, grants.groups)
        if self.gradient_weight == "use":
            weight = weight * uniform_over(grants.held)
        return state, Plan(grants.held, chosen, state.inclusion, weight)

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        return state


def uniform_over(subset: Flags) -> Floats:
    """[N, K] the uniform PMF over each client's subset."""
    pmf: Floats = subset / subset.sum(axis=1, keepdims=True)
    return pmf


def build(settings: RMSFT, fleet: Fleet) -> Policy:
    fleet.require_upload(most_upload(fleet.catalogue, int(fleet.budgets.max())))
    rate = resolve_rate("fine_tuning_rate", settings.fine_tuning_rate, rounds=fleet.schedule.rounds)
    return Policy(
        client=Client(settings.gradient_weight),
        server=GrantingServer(settings.server_step),
        local=GradientStep(rate, settings.window, settings.warm_up),
        loss_bound=settings.loss_bound,
        observes="predicting",
        expected_weights=lambda client, server: uniform_over(client.wanted),
        not_covered="it does not learn which model suits a client",
    )


algorithm = Algorithm(RMSFT, Client, build)
