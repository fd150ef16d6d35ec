"""Non-Fed-OMS: every client holds a fixed subset that fits its memory and chooses from it by Exp3. No fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ofms.core.declared import Doc
from ofms.policies.exp3 import Exp3Rate, Feedback, exp3_of
from ofms.policies.exp3_client import Exp3Client
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import Exploration, LossBound
from ofms.policies.subsets import Subset, require_subset


@dataclass(frozen=True)
class NonFedOMS:
    """Settings of Non-Fed-OMS, which the paper leaves open."""

    learning_rate: Exp3Rate = "tuned"
    exploration: Exploration = 0.0
    feedback: Feedback = "one"
    subset: Annotated[
        Subset, Doc("The models that a client holds: random ones of its own, the first that fit, or a list.")
    ] = "random"
    loss_bound: LossBound = "clip"


def build(settings: NonFedOMS, fleet: Fleet) -> Policy:
    require_subset(settings.subset, fleet.catalogue, fleet.budgets)
    client = Exp3Client(
        exp3_of(settings.learning_rate, settings.exploration, settings.feedback, fleet), settings.subset
    )
    return Policy(
        client=client,
        server=GrantingServer(),
        loss_bound=settings.loss_bound,
        observes=client.observes,
        expected_weights=lambda state, server: state.pmf,
        not_covered="its guarantee holds only against the best model of its own subset",
    )


algorithm = Algorithm(NonFedOMS, Exp3Client, build)
