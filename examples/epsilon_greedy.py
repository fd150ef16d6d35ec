"""Epsilon-greedy over a random set of models: ofms run --policy examples.epsilon_greedy:algorithm --set epsilon=0.05"""

from dataclasses import dataclass

import numpy as np

from ofms import policies
from ofms.policies import Algorithm, Exp3, Exp3Client, Flags, Fleet, Floats, GrantingServer, LossBound, Policy, Share


@dataclass(frozen=True)
class Settings:
    epsilon: Share = 0.1
    loss_bound: LossBound = "clip"


class EpsilonGreedy(Exp3):
    def probabilities(self, cumulative_losses: Floats, subset: Flags) -> Floats:
        best = np.where(subset, cumulative_losses, np.inf).argmin(axis=1)
        uniform = subset / subset.sum(axis=1, keepdims=True)
        leader = policies.one_hot(best, subset.shape[1])
        return np.asarray((1 - self.exploration) * leader + self.exploration * uniform)


@dataclass(frozen=True)
class Client(Exp3Client):
    rule: EpsilonGreedy


def build(settings: Settings, fleet: Fleet) -> Policy:
    return Policy(
        client=Client(EpsilonGreedy(1.0, settings.epsilon, "all", fleet.horizon), subset="random"),
        server=GrantingServer(),  # Grants what is requested; without a local update, nothing is fine-tuned.
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.pmf,
    )


algorithm = Algorithm(Settings, Client, build)
