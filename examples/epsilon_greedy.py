"""A policy of one's own: each client keeps a random set of models and predicts with the best so far, or tries another.

ofms run digits --policy examples.epsilon_greedy:algorithm --set epsilon=0.05      (from the project's folder)
"""

from dataclasses import dataclass, replace

import numpy as np

from ofms.policies import (
    Algorithm,
    Catalogue,
    ClientDraws,
    Flags,
    Fleet,
    Floats,
    GrantingServer,
    Grants,
    Integers,
    LossBound,
    Plan,
    Policy,
    Purpose,
    Share,
    draw_model,
    fill_budgets,
    one_hot,
)


@dataclass(frozen=True)
class Settings:
    epsilon: Share = 0.1
    loss_bound: LossBound = "clip"


@dataclass(frozen=True, eq=False)
class State:  # Arrays with a leading client axis: one client on a device, a million in a simulation.
    storage: Integers
    budgets: Integers
    losses: Floats
    pmf: Floats
    uniform: Floats


@dataclass(frozen=True)
class Client:
    epsilon: float

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        nothing = np.zeros((budgets.size, len(catalogue)))
        return State(catalogue.storage, budgets, nothing, nothing, np.zeros(budgets.size))

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        order = draws.of_the_run().table(Purpose.SUBSET, state.storage.size)
        wanted = fill_budgets(order, state.storage, state.budgets)
        return replace(state, uniform=draws.uniform(Purpose.MODEL)), wanted

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        best = np.where(grants.held, state.losses, np.inf).argmin(axis=1)
        uniform = grants.held / grants.held.sum(axis=1, keepdims=True)
        pmf = (1 - self.epsilon) * one_hot(best, uniform.shape[1]) + self.epsilon * uniform
        chosen = one_hot(draw_model(pmf, state.uniform), pmf.shape[1])
        return replace(state, pmf=pmf), Plan(grants.held, chosen, pmf, np.zeros(pmf.shape))

    def learn(self, state: State, plan: Plan, losses: Floats) -> State:
        return replace(state, losses=state.losses + np.where(plan.held, losses, 0.0))


def build(settings: Settings, fleet: Fleet) -> Policy:
    return Policy(
        client=Client(settings.epsilon),
        server=GrantingServer(),  # Grants what is asked for; without a local update, nothing is fine-tuned.
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.pmf,
    )


algorithm = Algorithm(Settings, Client, build)
