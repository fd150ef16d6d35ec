"""B-Fed-OMFT: the server keeps a fixed subset that fits every client; all of them fine-tune it, and choose by Exp3."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core.draws import Draws, Purpose
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.rates import resolve_rate
from ofms.core.typing import Flags, Floats
from ofms.core.uplink import draw_group, upload_needs
from ofms.policies.exp3 import exp3_of
from ofms.policies.exp3_client import Exp3Client
from ofms.policies.granting_server import ServerState, grants_for, require_server_step, server_step
from ofms.policies.protocol import (
    Algorithm,
    Fleet,
    GradientStep,
    Policy,
    require_budgets,
    require_common_settings,
    versions_after,
)
from ofms.policies.subsets import Subset, most_upload, named_subset, random_subset, require_subset, settled_subset


@dataclass(frozen=True)
class Settings:
    """What the paper leaves open.

    Attributes
    ----------
    learning_rate, exploration, feedback
        Exp3's, as in Non-Fed-OMS.
    subset
        Which models the server keeps: `random`, `first`, or a list of names or indices.
    fine_tuning_rate, server_step, window, warm_up, loss_bound
        As in OFMS-FT; every gradient has weight 1.
    """

    learning_rate: float | str = "tuned"
    exploration: float = 0.0
    feedback: Literal["one", "all"] = "one"
    subset: Literal["random", "first"] | list[int | str] = "random"
    fine_tuning_rate: float | str = 0.001
    server_step: float | Literal["N"] = 1
    window: int = 1
    warm_up: int = 0
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


@dataclass(frozen=True)
class Server:
    """Gives the same subset to everybody and adds up their updates of it."""

    server_step: float | str
    subset: Subset
    least_budget: int
    catalogue: Catalogue

    def open(self, catalogue: Catalogue, bandwidth: int) -> ServerState:
        return ServerState(catalogue.upload, bandwidth, catalogue.version)

    def grant(self, state: ServerState, requests: Requests, draws: Draws) -> tuple[ServerState, Grants]:
        held = np.broadcast_to(self._kept(draws), requests.wanted.shape).copy()
        groups = draw_group(upload_needs(held, state.upload), state.bandwidth, draws.single(Purpose.GROUP))
        return replace(state, clients=requests.client.size), grants_for(requests, held, state.version, groups)

    def absorb(self, state: ServerState, reports: Reports) -> tuple[ServerState, Floats]:
        step = np.full(state.version.size, server_step(self.server_step, state.clients))
        return replace(state, version=versions_after(reports, state.version)), step

    def _kept(self, draws: Draws) -> Flags:
        """[1, K] the server's subset: one for the least budget of all."""
        budget = np.array([self.least_budget])
        settled = settled_subset(self.subset, self.catalogue, budget)
        return random_subset(self.catalogue.storage, budget, draws, np.array([0])) if settled is None else settled


def build(settings: Settings, fleet: Fleet) -> Policy:
    """B-Fed-OMFT for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound, settings.window, settings.warm_up)
    require_server_step(settings.server_step)
    require_subset(settings.subset, fleet.catalogue, fleet.budgets)
    least = int(fleet.budgets.min())
    fleet.require_upload(_largest_upload(settings.subset, fleet.catalogue, least))
    rule = exp3_of(settings.learning_rate, settings.exploration, settings.feedback, fleet.schedule)
    rate = resolve_rate("fine_tuning_rate", settings.fine_tuning_rate, rounds=fleet.schedule.rounds)
    local = GradientStep(rate, settings.window, settings.warm_up)
    client = Exp3Client(rule, fleet.schedule, local=local)
    return Policy(
        name="b-fed-omft",
        client=client,
        server=Server(settings.server_step, settings.subset, least, fleet.catalogue),
        local=local,
        loss_bound=settings.loss_bound,
        expected_weights=lambda state, server: state.pmf,
        not_covered="its regret is against the best of its own subset only",
        learns_from=client.learns_from,
    )


def _largest_upload(subset: Subset, catalogue: Catalogue, budget: int) -> int:
    """The most that a client may have to upload."""
    if isinstance(subset, str):
        return most_upload(catalogue, budget)
    return int(catalogue.upload[named_subset(subset, catalogue)].sum())


algorithm = Algorithm(Settings, Exp3Client, build)
