"""Non-Fed-OMS: every client keeps a fixed subset that fits, and chooses among it by Exp3. No fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ofms.policies.exp3 import exp3_of
from ofms.policies.exp3_client import Exp3Client
from ofms.policies.granting_server import GrantingServer
from ofms.policies.protocol import Algorithm, Fleet, Policy, require_budgets, require_common_settings
from ofms.policies.subsets import require_subset


@dataclass(frozen=True)
class Settings:
    """What the paper leaves open.

    Attributes
    ----------
    learning_rate
        η: a number, a number over √T, or `tuned`.
    exploration
        γ: the share of uniform draws mixed into the PMF.
    feedback
        `one`: only the loss of the model that predicted is observed, as in Exp3. `all`: those of all stored models.
    subset
        `random`: one for each client; `first`: the first models that fit; or a list of names or indices.
    loss_bound
        As in OFMS-FT.
    """

    learning_rate: float | str = "tuned"
    exploration: float = 0.0
    feedback: Literal["one", "all"] = "one"
    subset: Literal["random", "first"] | list[int | str] = "random"
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


def build(settings: Settings, fleet: Fleet) -> Policy:
    """Non-Fed-OMS for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound)
    require_subset(settings.subset, fleet.catalogue, fleet.budgets)
    rule = exp3_of(settings.learning_rate, settings.exploration, settings.feedback, fleet.schedule)
    client = Exp3Client(rule, fleet.schedule, subset=settings.subset)
    return Policy(
        name="non-fed-oms",
        client=client,
        server=GrantingServer(None),
        local=None,
        loss_bound=settings.loss_bound,
        expected_weights=lambda state, server: state.pmf,
        not_covered="its regret is against the best of its own subset only",
        learns_from=client.learns_from,
    )


algorithm = Algorithm(Settings, Exp3Client, build)
