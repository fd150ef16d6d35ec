"""A policy of one's own: each client keeps a random set of models and predicts with the best so far, or tries another.

ofms run digits --policy examples.epsilon_greedy:algorithm --set epsilon=0.05   (from the project's folder)
"""

from dataclasses import dataclass

import numpy as np

from ofms.policies.exp3 import Exp3
from ofms.policies.exp3_client import Exp3Client
from ofms.policies.granting_server import GrantingServer
from ofms.policies.protocol import Algorithm, Fleet, Policy, require_budgets


@dataclass(frozen=True)
class Settings:
    epsilon: float = 0.1
    loss_bound: str = "clip"


class EpsilonGreedy(Exp3):
    """Like Exp3, but all of the weight is on the model with the smallest loss so far."""

    def probabilities(self, cumulative_losses: np.ndarray, subset: np.ndarray) -> np.ndarray:
        best = np.where(subset, cumulative_losses, np.inf).argmin(axis=1)
        leader = np.arange(subset.shape[1]) == best[:, None]
        uniform = subset / subset.sum(axis=1, keepdims=True)
        return np.asarray((1 - self.exploration) * leader + self.exploration * uniform)


def build(settings: Settings, fleet: Fleet) -> Policy:
    require_budgets(fleet.catalogue, fleet.budgets)
    rule = EpsilonGreedy(learning_rate=1.0, exploration=settings.epsilon, feedback="all", schedule=fleet.schedule)
    return Policy(
        name="epsilon-greedy",
        client=Exp3Client(rule, fleet.schedule, subset="random"),
        server=GrantingServer(None),  # Grants what is asked for; nobody uploads.
        local=None,  # Nothing is fine-tuned.
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.pmf,
    )


algorithm = Algorithm(Settings, Exp3Client, build)
