"""The client half of policies whose server decides what is held and what predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.typing import Floats, Integers
from ofms.policies.protocol import LocalUpdate, require_budgets, tuning_window_of, versions_held


@dataclass(frozen=True, eq=False)
class FollowerState:
    """Who the clients are and what they hold."""

    client: Integers
    holding: Integers
    exchange: int = 0


@dataclass(frozen=True)
class FollowerClient:
    """Asks for nothing, holds and votes as granted, and uploads or reports losses where the policy wants it."""

    schedule: Schedule
    local: LocalUpdate | None = None
    reports_losses: bool = False

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> FollowerState:
        require_budgets(catalogue, budgets)
        return FollowerState(clients, np.full((clients.size, len(catalogue)), -1))

    def request(self, state: FollowerState, draws: Draws) -> tuple[FollowerState, Requests]:
        nothing = np.zeros(state.holding.shape, dtype=np.bool_)
        state = replace(state, exchange=draws.exchange)
        return state, Requests(draws.exchange, state.client, nothing, state.holding)

    def plan(self, state: FollowerState, grants: Grants) -> tuple[FollowerState, Plan]:
        if grants.prediction_weights is None:
            raise ValueError("a policy whose clients follow must grant a prediction_weights")
        tuning = tuning_window_of(self.local, self.schedule, grants.exchange) is not None
        update_weight = grants.groups * (grants.held & grants.uploads[:, None] & tuning).astype(np.float64)
        state = replace(state, holding=versions_held(grants.held, grants.version))
        return state, Plan(grants.held, grants.prediction_weights, np.ones(grants.held.shape), update_weight)

    def learn(self, state: FollowerState, plan: Plan, losses: Floats) -> tuple[FollowerState, Reports]:
        told = np.where(plan.held, losses, np.nan) if self.reports_losses else None
        return state, Reports(state.exchange, state.client, told, plan.update_weight > 0)
