"""MAB: one Exp3 at the server over all models; its choice goes to every client. No fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core import selection
from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.rates import resolve_rate
from ofms.core.typing import Floats, Integers
from ofms.policies.follower_client import FollowerClient
from ofms.policies.granting_server import grants_for
from ofms.policies.protocol import Algorithm, Fleet, Policy, require_budgets, require_common_settings


@dataclass(frozen=True)
class Settings:
    """Exp3's open settings.

    Attributes
    ----------
    learning_rate
        η: a number, a number over √T, or `tuned` for √(2 ln K/(K n T)).
    exploration
        γ: the share of uniform draws mixed into the PMF.
    loss_bound
        As in OFMS-FT.
    """

    learning_rate: float | str = "tuned"
    exploration: float = 0.0
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's weights, as cumulative estimated losses, and the draw that awaits its loss."""

    version: Integers
    cumulative_losses: Floats
    pmf: Floats
    chosen: int = 0


@dataclass(frozen=True)
class Server:
    """Exp3: draw a model, give it to all, learn from the clients' mean loss."""

    learning_rate: float
    exploration: float

    def open(self, catalogue: Catalogue, bandwidth: int) -> ServerState:
        models = len(catalogue)
        return ServerState(catalogue.version, np.zeros(models), np.full(models, 1.0 / models))

    def grant(self, state: ServerState, requests: Requests, draws: Draws) -> tuple[ServerState, Grants]:
        weights = selection.probabilities(state.cumulative_losses[None], np.array([self.learning_rate]))[0]
        pmf = (1 - self.exploration) * weights + self.exploration / weights.size
        uniform = np.array([draws.single(Purpose.MODEL)])
        chosen = int(selection.draw_model(pmf[None], uniform)[0])
        held = np.zeros(requests.wanted.shape, dtype=np.bool_)
        held[:, chosen] = True
        grants = grants_for(requests, held, state.version, None, prediction_weights=held.astype(np.float64))
        return replace(state, pmf=pmf, chosen=chosen), grants

    def absorb(self, state: ServerState, reports: Reports) -> tuple[ServerState, Floats]:
        if reports.losses is None:
            raise ValueError("MAB's server learns from reported losses, and there are none")
        estimates = np.zeros(state.pmf.size)
        estimates[state.chosen] = reports.losses[:, state.chosen].mean() / state.pmf[state.chosen]
        cumulative = selection.update_weights(state.cumulative_losses, estimates)
        return replace(state, cumulative_losses=cumulative), np.zeros(state.pmf.size)


def build(settings: Settings, fleet: Fleet) -> Policy:
    """MAB for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound)
    if not 0 <= settings.exploration <= 1:
        raise InvalidInput("exploration", settings.exploration, "give a share between 0 and 1")
    models, schedule = len(fleet.catalogue), fleet.schedule
    tuned = math.sqrt(2 * math.log(models) / (models * schedule.interval * schedule.rounds))
    rate = resolve_rate("learning_rate", settings.learning_rate, rounds=schedule.rounds, tuned=tuned)
    return Policy(
        name="mab",
        client=FollowerClient(schedule, reports_losses=True),
        server=Server(rate, settings.exploration),
        local=None,
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: np.tile(server.pmf, (client.client.size, 1)),
        reports_losses=True,
    )


algorithm = Algorithm(Settings, FollowerClient, build)
