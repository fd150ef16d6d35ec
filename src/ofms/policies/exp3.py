"""Exp3 over the models that a client holds: what the baselines choose with.

References
----------
P. Auer, N. Cesa-Bianchi, Y. Freund, R. Schapire, "The nonstochastic multiarmed bandit problem",
SIAM J. Comput. 32, 2002.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.rates import resolve_rate
from ofms.core.schedule import Schedule
from ofms.core.selection import loss_estimates
from ofms.core.typing import Flags, Floats, Integers

FEEDBACKS = ("one", "all")


@dataclass(frozen=True)
class Exp3:
    """Exponential weights over a subset of the models.

    Attributes
    ----------
    learning_rate
        η, or None for one tuned to the number of models in the subset.
    exploration
        γ: the share of uniform draws mixed into the PMF.
    feedback
        `one`: the loss of the chosen model, over its probability. `all`: the losses of all models in the subset.
    """

    learning_rate: float | None
    exploration: float
    feedback: str
    schedule: Schedule

    def probabilities(self, cumulative_losses: Floats, subset: Flags) -> Floats:
        """[N, K] the PMF over each client's subset.

        >>> rule = Exp3(1.0, 0.2, "one", Schedule(10))
        >>> rule.probabilities(np.array([[0.0, 0.0, 9.0]]), np.array([[True, True, False]]))
        array([[0.5, 0.5, 0. ]])
        """
        size = subset.sum(axis=1, keepdims=True)
        inside = np.where(subset, cumulative_losses, np.inf)
        shifted = np.where(subset, inside - inside.min(axis=1, keepdims=True), 0.0)
        weights = np.where(subset, np.exp(-self._rates(size) * shifted), 0.0)
        pmf = weights / np.cumsum(weights, axis=1)[:, -1:]
        mixed: Floats = (1 - self.exploration) * pmf + self.exploration * subset / size
        return mixed

    def estimates(self, losses: Floats, chosen: Integers, pmf: Floats, subset: Flags) -> Floats:
        """[N, K] what the losses add to the cumulative ones."""
        if self.feedback == "all":
            return loss_estimates(losses, subset, np.ones(pmf.shape))
        taken = np.arange(pmf.shape[1]) == chosen[:, None]
        return loss_estimates(losses, taken, pmf)

    def _rates(self, size: Integers) -> Floats:
        if self.learning_rate is not None:
            return np.full(size.shape, self.learning_rate)
        samples = self.schedule.interval * self.schedule.rounds
        # A subset of one leaves nothing to learn: any rate will do.
        logarithm = np.log(np.maximum(size, 2))
        return np.sqrt(8 * logarithm / samples) if self.feedback == "all" else np.sqrt(2 * logarithm / (size * samples))


def exp3_of(learning_rate: float | str, exploration: float, feedback: str, schedule: Schedule) -> Exp3:
    """Exp3 from settings, or a refusal."""
    if not (0 <= exploration <= 1 and math.isfinite(exploration)):
        raise InvalidInput("exploration", exploration, "give a share between 0 and 1")
    if feedback not in FEEDBACKS:
        raise InvalidInput("feedback", feedback, f"use one of {', '.join(FEEDBACKS)}")
    rate = resolve_rate("learning_rate", learning_rate, rounds=schedule.rounds, tuned=math.inf)
    return Exp3(None if rate == math.inf else rate, exploration, feedback, schedule)
