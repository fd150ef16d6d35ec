"""B-Fed-OMFT: all clients hold and fine-tune the same fixed subset of models, and choose from it by Exp3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ofms.core.declared import Doc
from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Reports
from ofms.core.rates import resolve_rate
from ofms.core.typing import Flags
from ofms.policies.exp3 import Exp3Rate, Feedback, exp3_of
from ofms.policies.exp3_client import Exp3Client, GradientWeight
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import step_of
from ofms.policies.local_updates import GradientStep
from ofms.policies.protocol import Algorithm, Policy, SummedUpdates
from ofms.policies.settings import ADDED, Exploration, FineTuningRate, LossBound, ServerStep, WarmUp, Window
from ofms.policies.subsets import Subset, fixed_subset, largest_upload, random_subset, require_subset


@dataclass(frozen=True)
class BFedOMFT:
    """Settings of B-Fed-OMFT, which the paper leaves open."""

    learning_rate: Exp3Rate = "tuned"
    exploration: Exploration = 0.0
    feedback: Feedback = "one"
    subset: Annotated[Subset, Doc("The models that all clients hold: random ones, the first that fit, or a list.")] = (
        "random"
    )
    fine_tuning_rate: FineTuningRate = 0.001
    server_step: ServerStep = 1
    window: Window = 1
    warm_up: WarmUp = 0
    loss_bound: LossBound = "clip"
    gradient_weight: Annotated[
        GradientWeight,
        ADDED,
        Doc("The weight of a held model's gradient: one, or use for the probability that it predicts."),
    ] = "one"


@dataclass(frozen=True)
class Server:
    """Grant all clients the same subset, which fits the smallest budget, and sum their updates."""

    server_step: ServerStep
    subset: Subset
    least_budget: int
    catalogue: Catalogue

    def start(self, catalogue: Catalogue) -> None:
        return None

    def grant(self, state: None, wanted: Flags, draws: Draws) -> tuple[None, Flags, None]:
        budget = np.array([self.least_budget])
        kept = fixed_subset(self.subset, self.catalogue, budget)
        if kept is None:
            kept = random_subset(self.catalogue.storage, budget, draws.of(np.array([0])))
        return None, np.broadcast_to(kept, wanted.shape).copy(), None

    def learn(self, state: None, reports: Reports, summed: SummedUpdates) -> tuple[None, float]:
        return None, step_of(self.server_step, summed.clients)


def build(settings: BFedOMFT, fleet: Fleet) -> Policy:
    require_subset(settings.subset, fleet.catalogue, fleet.budgets)
    least = int(fleet.budgets.min())
    fleet.require_upload(largest_upload(settings.subset, fleet.catalogue, least))
    rate = resolve_rate("fine_tuning_rate", settings.fine_tuning_rate, rounds=fleet.schedule.rounds)
    rule = exp3_of(settings.learning_rate, settings.exploration, settings.feedback, fleet)
    client = Exp3Client(rule, gradient_weight=settings.gradient_weight)
    return Policy(
        client=client,
        server=Server(settings.server_step, settings.subset, least, fleet.catalogue),
        local=GradientStep(rate, settings.window, settings.warm_up),
        loss_bound=settings.loss_bound,
        observes=client.observes,
        expected_weights=lambda state, server: state.pmf,
        not_covered="its guarantee holds only against the best model of its own subset",
    )


algorithm = Algorithm(BFedOMFT, Exp3Client, build)
