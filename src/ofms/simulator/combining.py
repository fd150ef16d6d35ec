"""How a simulated server makes one update of its clients': robustly, and with hostile clients among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.compute.protocol import Combine
from ofms.core.attacks import Attack
from ofms.core.draws import Draws
from ofms.core.messages import Grants
from ofms.core.robust import Aggregation, norms, total
from ofms.core.typing import AnyArray, Flags, Integers
from ofms.core.usual_norms import UsualNorms

# As `largest_update` of a deployment is by default.
_LARGEST_UPDATE = 1.0


@dataclass(frozen=True, eq=False)
class Combination:
    """A `Combine` for one exchange; `hostile` is [N], `most_weight` the largest weight of an update."""

    aggregation: Aggregation
    usual: UsualNorms
    attack: Attack | None
    hostile: Flags
    draws: Draws
    most_weight: float

    def __call__(self, model: int, clients: Integers, updates: AnyArray, norm: float) -> AnyArray:
        if self.attack is not None:
            most = _LARGEST_UPDATE * norm * self.most_weight
            updates = self.attack.distorted(updates, clients, self.hostile, model, most=most, draws=self.draws)
        if not self.aggregation.robust:
            return total(updates, self.aggregation)
        return total(updates, self.aggregation, self.usual.add(model, norms(updates)))


def combination_for(
    aggregation: Aggregation, usual: UsualNorms, attack: Attack | None, clients: int, grants: Grants, draws: Draws
) -> Combine | None:
    """What an exchange needs besides sums; None if sums are all."""
    if attack is None and not aggregation.robust:
        return None
    # As in the server's validation: a model is held with a probability of at least 1/K.
    most_weight = float(grants.groups * grants.held.shape[1])
    hostile = np.zeros(clients, dtype=np.bool_) if attack is None else attack.hostile(draws.seed, clients)
    return Combination(aggregation, usual, attack, hostile, draws, most_weight)
