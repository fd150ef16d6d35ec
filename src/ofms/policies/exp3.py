"""Exp3 over the models that a client holds; the baselines choose with it.

References
----------
P. Auer, N. Cesa-Bianchi, Y. Freund, R. Schapire, "The nonstochastic multiarmed bandit problem",
SIAM J. Comput. 32, 2002.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ofms.core.declared import Doc
from ofms.core.rates import resolve_rate
from ofms.core.selection import loss_estimates, one_hot
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.fleet import Fleet
from ofms.policies.settings import Rate, TunedRate

Feedback = Annotated[
    Literal["one", "all"],
    Doc("one: only the loss of the model that predicted is observed, as in Exp3; all: those of all held models."),
]
Exp3Rate = Annotated[
    TunedRate,
    Doc(
        "η, the learning rate of Exp3.",
        "tuned, for k held models: √(2 ln k/(k n T)); if all are observed, √(8 ln k/(n T))",
    ),
]


@dataclass(frozen=True)
class Exp3:
    """Exponential weights over a subset of the models.

    Attributes
    ----------
    learning_rate
        η, or None for a rate tuned to the size of the subset.
    exploration
        γ: the share of uniform draws mixed into the PMF.
    feedback
        `one`: the loss of the chosen model, divided by its probability. `all`: the losses of all models in the subset.
    horizon
        n T, for a tuned rate; None if there is no horizon.
    """

    learning_rate: float | None
    exploration: float
    feedback: Feedback
    horizon: int | None

    def probabilities(self, cumulative_losses: Floats, subset: Flags) -> Floats:
        """[N, K] the PMF over each client's subset.

        >>> rule = Exp3(1.0, 0.2, "one", horizon=10)
        >>> rule.probabilities(np.array([[0.0, 0.0, 9.0]]), np.array([[True, True, False]]))
        array([[0.5, 0.5, 0. ]])
        """
        size = subset.sum(axis=1, keepdims=True)
        inside = np.where(subset, cumulative_losses, np.inf)
        shifted = np.where(subset, inside - inside.min(axis=1, keepdims=True), 0.0)
        weights = np.where(subset, np.exp(-self.rates(size) * shifted), 0.0)
        pmf = weights / np.cumsum(weights, axis=1)[:, -1:]
        mixed: Floats = (1 - self.exploration) * pmf + self.exploration * subset / size
        return mixed

    def estimates(self, losses: Floats, chosen: Integers, pmf: Floats, subset: Flags) -> Floats:
        """[N, K] loss estimates, to be added to the cumulative ones."""
        if self.feedback == "all":
            return loss_estimates(losses, subset, np.ones(pmf.shape))
        return loss_estimates(losses, one_hot(chosen, pmf.shape[1]) > 0, pmf)

    def rates(self, size: Integers) -> Floats:
        """η for subsets of some sizes."""
        if self.learning_rate is not None:
            return np.full(size.shape, self.learning_rate)
        if self.horizon is None:
            raise ValueError("a tuned rate depends on the horizon")
        # With a subset of one model there is nothing to learn: any finite rate works.
        logarithm = np.log(np.maximum(size, 2))
        if self.feedback == "all":
            return np.sqrt(8 * logarithm / self.horizon)
        return np.sqrt(2 * logarithm / (size * self.horizon))


def exp3_of(learning_rate: Rate, exploration: float, feedback: Feedback, fleet: Fleet) -> Exp3:
    """Exp3 from settings."""
    rounds = fleet.schedule.rounds
    rate = resolve_rate("learning_rate", learning_rate, rounds=rounds, tuned=math.inf)
    horizon = None if rounds is None else fleet.horizon
    return Exp3(None if rate == math.inf else rate, exploration, feedback, horizon)
