"""What happened in an exchange: the record that both simulators make and that metrics read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.ledger import Traffic
from ofms.core.messages import Grants, Plan
from ofms.core.selection_loss import selection_loss
from ofms.core.typing import Flags, Floats
from ofms.policies.settings import LossBound


@dataclass(frozen=True, eq=False)
class Exchange:
    """One exchange of all clients.

    Attributes
    ----------
    span
        The first round and the first one after it.
    scores
        [N, n] what the metric averages, for the predictions that clients made.
    losses
        [N, n, K] the task's losses of evaluated models, observed ones at least; of all models in hindsight; else NaN.
    model_scores
        [N, n, K] likewise the score of each model by itself.
    client_losses
        [N, n, K] the losses that clients incur with each model: of adapted copies where a policy adapts.
    expected_weights
        [N, K] the expected prediction weights.
    frozen_scores
        [N, n] like `scores`, had the dictionary not been fine-tuned and the choices been the same; None where it is not
        measured.
    """

    index: int
    span: tuple[int, int]
    grants: Grants
    plan: Plan
    traffic: Traffic
    scores: Floats
    losses: Floats
    model_scores: Floats
    client_losses: Floats
    expected_weights: Floats
    frozen_scores: Floats | None = None


def policy_losses(losses: Floats, observed: Flags, bound: LossBound) -> Floats:
    """[N, K] what a policy learns from: selection losses of observed models, summed over the exchange; else NaN."""
    total = selection_loss(losses, bound).sum(axis=1)
    return np.where(observed, total, np.nan)
