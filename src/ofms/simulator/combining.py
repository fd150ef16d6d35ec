"""How a simulated server makes one update of its clients': robustly, and with hostile clients among them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ofms.core.attacks import Attack
from ofms.core.draws import Draws
from ofms.core.messages import Grants, Reports
from ofms.core.robust import Aggregation, clip_factors, norms, scaled_losses, total
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.core.usual_norms import UsualNorms

# As `largest_update` of a deployment is by default.
_LARGEST_UPDATE = 1.0


@dataclass(frozen=True, eq=False)
class Combination:
    """A `Combine` for one exchange; `hostile` is [N], `most_weight` the largest weight of an update.

    `factors` are those by which the updates of each model were shortened, with their clients.
    """

    aggregation: Aggregation
    usual: UsualNorms
    attack: Attack | None
    hostile: Flags
    draws: Draws
    most_weight: float
    factors: dict[int, tuple[Integers, Floats]] = field(default_factory=dict)

    def __call__(self, model: int, clients: Integers, updates: AnyArray, norm: float) -> AnyArray:
        if self.attack is not None:
            most = _LARGEST_UPDATE * norm * self.most_weight
            updates = self.attack.distorted(updates, clients, self.hostile, model, most=most, draws=self.draws)
        if not self.aggregation.robust:
            return total(updates, self.aggregation)
        lengths = norms(updates)
        factors = clip_factors(lengths, self.aggregation, self.usual.add(model, lengths))
        self.factors[model] = clients, factors
        return total(updates, self.aggregation, factors)

    def scaled(self, reports: Reports) -> Reports:
        """The reports with the losses of shortened updates."""
        if reports.losses is None or not self.factors:
            return reports
        return replace(reports, losses=scaled_losses(reports.losses, reports.client, self.factors))


def combination_for(
    aggregation: Aggregation, usual: UsualNorms, attack: Attack | None, clients: int, grants: Grants, draws: Draws
) -> Combination | None:
    """What an exchange needs besides sums; None if sums are all."""
    if attack is None and not aggregation.robust:
        return None
    # As in the server's validation: a model is held with a probability of at least 1/K.
    most_weight = float(grants.groups * grants.held.shape[1])
    hostile = np.zeros(clients, dtype=np.bool_) if attack is None else attack.hostile(draws.seed, clients)
    return Combination(aggregation, usual, attack, hostile, draws, most_weight)
