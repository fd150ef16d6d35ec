"""OFMS-FT: online federated model selection and fine-tuning (alg:6 of the paper).

A client draws a model from its own weights, fills the rest of its memory with a random cluster of the others,
predicts with the one it drew and learns from the losses of all it holds. The server splits the clients into groups that
fit the bandwidth, and one random group uploads its fine-tuned models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core import selection
from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.packing import PartitionTable, largest_cluster_upload, partition_models
from ofms.core.schedule import Schedule
from ofms.core.typing import Floats, Integers
from ofms.policies import ofms_ft_theory as theory
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


@dataclass(frozen=True)
class Settings:
    """What the paper leaves open.

    Attributes
    ----------
    learning_rate
        η_i: a number, `tuned` for √(ln K/(μ n T)), or a number over √T such as the paper's `10/sqrt(T)`.
    fine_tuning_rate
        η_f: likewise; 0 freezes the dictionary.
    server_step
        The multiplier of (3r2)'s 1/N mean: 1 as written; `N` for the sum, as in the published figures.
    importance_cap
        The largest 1/q in the gradient's weight; None for no cap.
    loss_bound
        How selection losses come into [0, 1]: `clip`, `saturate`, or `raw` for not at all.
    window
        How many samples the fine-tuning loss averages: 1 is the current one, as in (2r2).
    warm_up
        The first round that fine-tunes.
    """

    learning_rate: float | str = "tuned"
    fine_tuning_rate: float | str = "tuned"
    server_step: float | Literal["N"] = 1
    importance_cap: float | None = None
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"
    window: int = 1
    warm_up: int = 0


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client remembers: its weights, what it drew for the coming exchange, and what it holds."""

    client: Integers
    table: PartitionTable
    learning_rate: Floats
    cumulative_losses: Floats
    chosen: Integers
    inclusion: Floats
    holding: Integers
    exchange: int = 0


@dataclass(frozen=True)
class Client:
    """The client half: alg:6, steps 5 to 10 and 16 to 19. The server half, its other steps, is `GrantingServer`."""

    settings: Settings
    local: GradientStep
    schedule: Schedule

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> ClientState:
        require_budgets(catalogue, budgets)
        table = partition_models(catalogue.storage, budgets)
        shape = (clients.size, len(catalogue))
        return ClientState(
            client=clients,
            table=table,
            learning_rate=theory.learning_rates(self.settings.learning_rate, catalogue, table, self.schedule)[
                table.kind
            ],
            cumulative_losses=np.zeros(shape),
            chosen=np.zeros(clients.size, dtype=np.int64),
            inclusion=np.ones(shape),
            holding=np.full(shape, -1),
        )

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        drawn = selection.draw_sets(
            state.cumulative_losses,
            state.learning_rate,
            state.table,
            draws.uniform(Purpose.MODEL, state.client),
            draws.uniform(Purpose.CLUSTER, state.client),
        )
        state = replace(state, chosen=drawn.chosen, inclusion=drawn.inclusion, exchange=draws.exchange)
        return state, Requests(draws.exchange, state.client, drawn.held, state.holding)

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        prediction_weights = np.zeros(grants.held.shape)
        prediction_weights[np.arange(state.chosen.size), state.chosen] = 1.0
        update_weight = np.zeros(grants.held.shape)
        if tuning_window_of(self.local, self.schedule, grants.exchange) is not None:
            update_weight = selection.importance_weights(
                grants.held, state.inclusion, grants.uploads, grants.groups, self.settings.importance_cap
            )
        state = replace(state, holding=versions_held(grants.held, grants.version))
        return state, Plan(grants.held, prediction_weights, state.inclusion, update_weight)

    def learn(self, state: ClientState, plan: Plan, losses: Floats) -> tuple[ClientState, Reports]:
        estimates = selection.loss_estimates(losses, plan.held, plan.inclusion)
        cumulative = selection.update_weights(state.cumulative_losses, estimates)
        reports = Reports(state.exchange, state.client, None, plan.update_weight > 0)
        return replace(state, cumulative_losses=cumulative), reports


def build(settings: Settings, fleet: Fleet) -> Policy:
    """OFMS-FT for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound, settings.window, settings.warm_up)
    _require_settings(settings)
    table = partition_models(fleet.catalogue.storage, fleet.budgets)
    fleet.require_upload(largest_cluster_upload(fleet.catalogue.upload, table))
    rates = theory.learning_rates(settings.learning_rate, fleet.catalogue, table, fleet.schedule)
    local = GradientStep(
        theory.fine_tuning_rate(settings.fine_tuning_rate, fleet, table), settings.window, settings.warm_up
    )
    bound, not_covered = None, ""
    if settings.loss_bound == "raw":
        not_covered = "the selection loss is not bounded (a1)"
    elif rates.min() == 0:
        not_covered = "a learning rate of 0 never learns"
    else:
        bound = np.array([each.sharp for each in theory.client_bounds(rates, fleet, table)])[table.kind]
    return Policy(
        name="ofms-ft",
        client=Client(settings, local, fleet.schedule),
        server=GrantingServer(settings.server_step),
        local=local,
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: selection.probabilities(client.cumulative_losses, client.learning_rate),
        bound=bound,
        not_covered=not_covered,
    )


def server_not_covered(settings: Settings) -> str:
    """Why the theorems say nothing on the server's regret with these settings; empty where they do."""
    reasons = {
        "the selection loss is not bounded (a1)": settings.loss_bound == "raw",
        "the importance weights are capped": settings.importance_cap is not None,
        "the fine-tuning loss is a window's": settings.window != 1,
        "the first rounds do not fine-tune": settings.warm_up != 0,
        "the server's step is not the mean of (3r2)": settings.server_step != 1,
    }
    return ", ".join(reason for reason, applies in reasons.items() if applies)


def _require_settings(settings: Settings) -> None:
    if settings.importance_cap is not None and not settings.importance_cap > 0:
        raise InvalidInput("importance_cap", settings.importance_cap, "give a number above 0, or leave it out")
    require_server_step(settings.server_step)


algorithm = Algorithm(Settings, Client, build)
