"""The server half of policies that fine-tune models with steps that need no tuning.

Clients report the losses of the models that they fine-tune, with the weights of their gradients. With F the sum of
these for a model, g its summed gradient and d the direction in which it moves, d ← β d - g with momentum β or that of
FedAdam (`ofms.compute.momentum`), the t-th step is c ΣF/Σ⟨-g, d⟩ / √t, sums over the t steps so far. It is a Polyak
step: to first order, the first one reduces the loss of the model's users by the share c, whatever the scales of losses
and parameters are. A Polyak step is meant for a loss that can reach 0: where it cannot, √t makes it converge. An
exchange in which few clients use a model counts little in both sums, and moves the model little. No step moves the
parameters by more than a tenth of their norm.

Models that are fine-tuned by use earn their steps: the share begins at c/8. A comparison with first versions
(`ofms.policies.controls`) that shows by which share fine-tuning has reduced the errors of the fleet sets it to c times
four times that share, within c/8 and c: large steps only where fine-tuning gains much. A model that became worse goes
back to its first version, and to an eighth of its share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Reports
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.changes import Change
from ofms.policies.protocol import SummedUpdates

_FARTHEST = 0.1
_CAUTION = 1 / 8
_FURTHER = 4.0


@dataclass(frozen=True, eq=False)
class TuningState:
    """[K] the sums of the users' losses and of the products of updates and directions, the number of steps, and c."""

    losses: Floats
    products: Floats
    steps: Integers
    share: Floats


@dataclass(frozen=True)
class TuningServer:
    """Grant what was requested, and fine-tune.

    Parameters
    ----------
    share
        c, by which share of the loss a step aims to reduce it, before √t.
    rate
        The clients' updates are gradients times -rate.
    earned
        Whether the share begins at c/8 and grows by comparisons with first versions; otherwise it is c.
    """

    share: float
    rate: float
    earned: bool = True

    @property
    def first_share(self) -> float:
        return _CAUTION * self.share if self.earned else self.share

    def start(self, catalogue: Catalogue) -> TuningState:
        zeros, steps = np.zeros(len(catalogue)), np.zeros(len(catalogue), dtype=np.int64)
        return TuningState(zeros, zeros, steps, np.full(len(catalogue), self.first_share))

    def adapt(self, state: TuningState, change: Change) -> TuningState:
        losses, products, steps = map(change.carried, (state.losses, state.products, state.steps))
        return TuningState(losses, products, steps, change.carried(state.share, self.first_share))

    def grant(self, state: TuningState, wanted: Flags, draws: Draws) -> tuple[TuningState, Flags, None]:
        return state, wanted, None

    def learn(self, state: TuningState, reports: Reports, summed: SummedUpdates) -> tuple[TuningState, Floats]:
        moved = summed.norms > 0
        if summed.restored.any() or summed.gains.any():
            earned = self.share * np.clip(_FURTHER * summed.gains, _CAUTION, 1.0)
            share = np.where(self.earned & (summed.gains > 0), earned, state.share)
            state = replace(state, share=np.where(summed.restored, _CAUTION * share, share))
        if reports.losses is None or not moved.any():
            return state, np.zeros(moved.size)
        reported = np.where(reports.updated, reports.losses, 0.0).sum(axis=0)
        losses = state.losses + np.where(moved, reported, 0.0)
        products = state.products + np.maximum(summed.products, 0.0)
        steps = state.steps + moved
        polyak = state.share * self.rate * losses / np.where(products > 0, products, 1.0)
        step = polyak / np.sqrt(np.maximum(steps, 1))
        farthest = _FARTHEST * summed.parameters / np.where(moved, summed.norms, 1.0)
        return TuningState(losses, products, steps, state.share), np.where(moved, np.minimum(step, farthest), 0.0)
