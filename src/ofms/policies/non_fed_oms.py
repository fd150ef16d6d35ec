"""Non-Fed-OMS: every client holds a fixed subset that fits its memory and chooses from it by Exp3. No fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass

from ofms.policies.exp3 import Feedback, exp3_of
from ofms.policies.exp3_client import Exp3Client
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import LossBound, Rate, Share
from ofms.policies.subsets import Subset, require_subset


@dataclass(frozen=True)
class Settings:
    """Settings that the paper leaves open.

    Attributes
    ----------
    learning_rate
        η: a number, a number over √T, or `tuned`.
    exploration
        γ: the share of uniform draws mixed into the PMF.
    feedback
        `one`: only the loss of the model that predicted is observed, as in Exp3. `all`: those of all held models.
    subset
        `random`: one for each client; `first`: the first models that fit; or a list of names or indices.
    loss_bound
        As in OFMS-FT.
    """

    learning_rate: Rate = "tuned"
    exploration: Share = 0.0
    feedback: Feedback = "one"
    subset: Subset = "random"
    loss_bound: LossBound = "clip"


def build(settings: Settings, fleet: Fleet) -> Policy:
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


algorithm = Algorithm(Settings, Exp3Client, build)
