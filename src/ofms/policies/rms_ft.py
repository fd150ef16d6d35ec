"""RMS-FT: a uniformly random subset that fits, a random member of it predicts, all of it is fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core import selection
from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.rates import resolve_rate
from ofms.core.schedule import Schedule
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.granting_server import GrantingServer, require_server_step
from ofms.policies.protocol import (
    Algorithm,
    Fleet,
    GradientStep,
    Policy,
    require_budgets,
    require_common_settings,
    tuning_window_of,
    versions_held,
)
from ofms.policies.subsets import fill_budgets, most_upload

WEIGHTS = ("one", "inverse")


@dataclass(frozen=True)
class Settings:
    """What the paper leaves open.

    Attributes
    ----------
    gradient_weight
        `one`: a held model's gradient counts once. `inverse`: K over the number of held models times, as an importance
        weight would make it.
    fine_tuning_rate, server_step, window, warm_up, loss_bound
        As in OFMS-FT.
    """

    gradient_weight: Literal["one", "inverse"] = "one"
    fine_tuning_rate: float | str = 0.001
    server_step: float | Literal["N"] = 1
    window: int = 1
    warm_up: int = 0
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client remembers: what it drew for the coming exchange, and what it holds."""

    client: Integers
    storage: Integers
    budgets: Integers
    wanted: Flags
    chosen: Integers
    holding: Integers
    exchange: int = 0


@dataclass(frozen=True)
class Client:
    """Draws a new subset in every exchange and learns nothing."""

    gradient_weight: str
    local: GradientStep
    schedule: Schedule

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> ClientState:
        require_budgets(catalogue, budgets)
        shape = (clients.size, len(catalogue))
        return ClientState(
            client=clients,
            storage=catalogue.storage,
            budgets=budgets,
            wanted=np.zeros(shape, dtype=np.bool_),
            chosen=np.zeros(clients.size, dtype=np.int64),
            holding=np.full(shape, -1),
        )

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        priority = draws.table(Purpose.SUBSET, state.client, state.storage.size)
        wanted = fill_budgets(priority, state.storage, state.budgets)
        chosen = selection.draw_model(
            wanted / wanted.sum(axis=1, keepdims=True), draws.uniform(Purpose.MODEL, state.client)
        )
        state = replace(state, wanted=wanted, chosen=chosen, exchange=draws.exchange)
        return state, Requests(draws.exchange, state.client, wanted, state.holding)

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        models = state.storage.size
        prediction_weights = (np.arange(models) == state.chosen[:, None]).astype(np.float64)
        share = np.broadcast_to(grants.held.sum(axis=1, keepdims=True) / models, prediction_weights.shape)
        inclusion = share if self.gradient_weight == "inverse" else np.ones(prediction_weights.shape)
        update_weight = np.zeros(prediction_weights.shape)
        if tuning_window_of(self.local, self.schedule, grants.exchange) is not None:
            update_weight = selection.importance_weights(grants.held, inclusion, grants.uploads, grants.groups)
        state = replace(state, holding=versions_held(grants.held, grants.version))
        return state, Plan(grants.held, prediction_weights, inclusion, update_weight)

    def learn(self, state: ClientState, plan: Plan, losses: Floats) -> tuple[ClientState, Reports]:
        return state, Reports(state.exchange, state.client, None, plan.update_weight > 0)


def build(settings: Settings, fleet: Fleet) -> Policy:
    """RMS-FT for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound, settings.window, settings.warm_up)
    require_server_step(settings.server_step)
    if settings.gradient_weight not in WEIGHTS:
        raise InvalidInput("gradient_weight", settings.gradient_weight, f"use one of {', '.join(WEIGHTS)}")
    fleet.require_upload(most_upload(fleet.catalogue, int(fleet.budgets.max())))
    rate = resolve_rate("fine_tuning_rate", settings.fine_tuning_rate, rounds=fleet.schedule.rounds)
    local = GradientStep(rate, settings.window, settings.warm_up)
    return Policy(
        name="rms-ft",
        client=Client(settings.gradient_weight, local, fleet.schedule),
        server=GrantingServer(settings.server_step),
        local=local,
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.wanted / client.wanted.sum(axis=1, keepdims=True),
        not_covered="it does not learn which model suits a client",
        learns_from="votes",
    )


algorithm = Algorithm(Settings, Client, build)
