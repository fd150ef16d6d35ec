"""The server half of policies that fine-tune by use, with steps that need no tuning.

Clients report the losses of the models that they fine-tune, weighted by how much they use them. With F_k their sum and
g_k the summed gradient, the first step of a model is the Polyak step c F_k/‖g_k‖²: to first order it reduces the loss
of the model's users by the share c, whatever the scales of losses and parameters are. The models do not reach a loss of
0, for which that step is meant: so it never grows, and falls with the root of the number of steps. It also moves
parameters by at most a tenth of their norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Reports
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.protocol import SummedUpdates

_FARTHEST = 0.1


@dataclass(frozen=True, eq=False)
class TuningState:
    """[K] the smallest Polyak step so far (infinite before the first), and the number of steps."""

    smallest: Floats
    steps: Integers


@dataclass(frozen=True)
class TuningServer:
    """Grant what was requested, and fine-tune.

    Parameters
    ----------
    share
        c, by which share of the loss the first step aims to reduce it.
    rate
        The clients' updates are gradients times -rate.
    """

    share: float
    rate: float

    def start(self, catalogue: Catalogue) -> TuningState:
        return TuningState(np.full(len(catalogue), np.inf), np.zeros(len(catalogue), dtype=np.int64))

    def grant(self, state: TuningState, wanted: Flags, draws: Draws) -> tuple[TuningState, Flags, None]:
        return state, wanted, None

    def learn(self, state: TuningState, reports: Reports, summed: SummedUpdates) -> tuple[TuningState, Floats]:
        moved = summed.norms > 0
        if reports.losses is None or not moved.any():
            return state, np.zeros(moved.size)
        losses = np.where(reports.updated, reports.losses, 0.0).sum(axis=0)
        norms = np.where(moved, summed.norms, 1.0)
        polyak = self.share * self.rate * losses / np.square(norms)
        smallest = np.where(moved, np.minimum(state.smallest, polyak), state.smallest)
        steps = state.steps + moved
        step = np.where(moved, smallest, 0.0) / np.sqrt(np.maximum(steps, 1))
        return TuningState(smallest, steps), np.minimum(step, _FARTHEST * summed.parameters / norms)
