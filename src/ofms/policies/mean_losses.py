"""Mean losses of models over the exchanges in which a client held them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.changes import Change


@dataclass(frozen=True, eq=False)
class MeanLosses:
    """[N, K] summed losses of held models, and the number of exchanges in which each was held."""

    total: Floats
    count: Integers

    @classmethod
    def start(cls, clients: int, models: int) -> MeanLosses:
        """Nothing observed yet."""
        return cls(np.zeros((clients, models)), np.zeros((clients, models), dtype=np.int64))

    def adapt(self, change: Change) -> MeanLosses:
        """Those of a changed dictionary: nothing is observed of new models."""
        return MeanLosses(change.carried(self.total), change.carried(self.count))

    def add(self, losses: Floats, held: Flags) -> MeanLosses:
        """Add the [N, K] losses of an exchange; only those of held models count."""
        return MeanLosses(self.total + np.where(held, losses, 0.0), self.count + held)

    def leader(self, among: Flags) -> Integers:
        """[N] the model of least mean loss among [N, K] flags: an observed one if there is one, then the first.

        >>> losses = MeanLosses(np.array([[0.0, 6.0, 1.0]]), np.array([[0, 3, 1]]))
        >>> losses.leader(np.array([[True, True, False]])), losses.leader(np.array([[True, True, True]]))
        (array([1]), array([2]))
        """
        mean = np.where(self.count > 0, self.total / np.maximum(self.count, 1), np.finfo(np.float64).max)
        leader: Integers = np.where(among, mean, np.inf).argmin(axis=1)
        return leader
