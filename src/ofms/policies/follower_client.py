"""The client half of policies whose server decides which models clients hold and predict with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.draws import ClientDraws
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.selection import importance_weights
from ofms.core.typing import Integers
from ofms.policies.observations import Observations


@dataclass(frozen=True)
class FollowerClient:
    """Request nothing; hold and predict with what is granted."""

    def start(self, catalogue: Catalogue, budgets: Integers) -> None:
        return None

    def select(self, state: None, draws: ClientDraws) -> tuple[None, None]:
        return None, None

    def plan(self, state: None, grants: Grants) -> tuple[None, Plan]:
        if grants.prediction_weights is None:
            raise ValueError("with FollowerClient, the server must grant prediction weights")
        certain = np.ones(grants.held.shape)
        weight = importance_weights(grants.held, certain, grants.uploads, grants.groups)
        return None, Plan(grants.held, grants.prediction_weights, certain, weight)

    def learn(self, state: None, plan: Plan, seen: Observations) -> None:
        return None
