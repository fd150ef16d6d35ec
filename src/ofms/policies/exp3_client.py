"""The client half of policies in which every client runs Exp3 over a fixed subset of models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core import selection
from ofms.core.draws import Draws, Purpose
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.exp3 import Exp3
from ofms.policies.protocol import LocalUpdate, require_budgets, tuning_window_of, versions_held
from ofms.policies.subsets import Subset, random_subset, settled_subset


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client remembers: its weights, its draw for the coming exchange, and what it holds."""

    client: Integers
    storage: Integers
    budgets: Integers
    cumulative_losses: Floats
    wanted: Flags
    uniform: Floats
    pmf: Floats
    holding: Integers
    exchange: int = 0


@dataclass(frozen=True)
class Exp3Client:
    """Asks for its own `subset`, or for nothing where the server decides; chooses by Exp3 among what it got."""

    rule: Exp3
    schedule: Schedule
    subset: Subset | None = None
    local: LocalUpdate | None = None

    @property
    def learns_from(self) -> Literal["holds", "votes"]:
        """Exp3 itself knows no more than the loss of what it chose."""
        return "holds" if self.rule.feedback == "all" else "votes"

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> ClientState:
        require_budgets(catalogue, budgets)
        shape = (clients.size, len(catalogue))
        settled = None if self.subset is None else settled_subset(self.subset, catalogue, budgets)
        return ClientState(
            client=clients,
            storage=catalogue.storage,
            budgets=budgets,
            cumulative_losses=np.zeros(shape),
            wanted=np.zeros(shape, dtype=np.bool_) if settled is None else settled,
            uniform=np.zeros(clients.size),
            pmf=np.full(shape, 1.0 / shape[1]),
            holding=np.full(shape, -1),
        )

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        wanted = state.wanted
        if self.subset == "random":
            wanted = random_subset(state.storage, state.budgets, draws, state.client)
        uniform = draws.uniform(Purpose.MODEL, state.client)
        state = replace(state, wanted=wanted, uniform=uniform, exchange=draws.exchange)
        return state, Requests(draws.exchange, state.client, wanted, state.holding)

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        pmf = self.rule.probabilities(state.cumulative_losses, grants.held)
        chosen = selection.draw_model(pmf, state.uniform)
        prediction_weights = (np.arange(pmf.shape[1]) == chosen[:, None]).astype(np.float64)
        tuning = tuning_window_of(self.local, self.schedule, grants.exchange) is not None
        update_weight = grants.groups * (grants.held & grants.uploads[:, None] & tuning).astype(np.float64)
        state = replace(state, pmf=pmf, holding=versions_held(grants.held, grants.version))
        return state, Plan(grants.held, prediction_weights, pmf, update_weight)

    def learn(self, state: ClientState, plan: Plan, losses: Floats) -> tuple[ClientState, Reports]:
        # From the plan, not from the state: a label may come after the next choice.
        estimates = self.rule.estimates(losses, plan.prediction_weights.argmax(axis=1), plan.inclusion, plan.held)
        cumulative = selection.update_weights(state.cumulative_losses, estimates)
        reports = Reports(state.exchange, state.client, None, plan.update_weight > 0)
        return replace(state, cumulative_losses=cumulative), reports
