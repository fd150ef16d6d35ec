"""The record of an exchange, which both simulators produce and metrics read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
        The first round, and the first round after it.
    scores
        [N, n] scores of the clients' predictions, which the metric averages.
    losses
        [N, n, K] the task's losses: of all models with hindsight, otherwise at least of observed models; else NaN.
    model_scores
        [N, n, K] the score of each model by itself; NaN as in `losses`.
    client_losses
        [N, n, K] the losses that clients incur with each model, of adapted copies if the policy adapts.
    expected_weights
        [N, K] the expected prediction weights.
    prediction_losses
        [N, n] losses of the clients' predictions if these are mixtures, which lose less than their models on average;
        else None.
    frozen_scores
        [N, n] scores of the same choices without fine-tuning; None if they are not measured.
    quarantined
        The models that diverged in this exchange.
    left_out
        Clients and models whose updates are not finite.
    present
        [N] and [K] the clients and models in the fleet; None if all are throughout the run.
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
    prediction_losses: Floats | None = None
    frozen_scores: Floats | None = None
    quarantined: list[int] = field(default_factory=list)
    left_out: list[tuple[int, int]] = field(default_factory=list)
    present: tuple[Flags, Flags] | None = None


def flags_of(pairs: Sequence[tuple[int, int]], shape: tuple[int, ...]) -> Flags:
    """[N, K] whether a client and a model are among the pairs."""
    flags = np.zeros(shape, dtype=np.bool_)
    for client, model in pairs:
        flags[client, model] = True
    return flags


def policy_losses(losses: Floats, observed: Flags, bound: LossBound) -> Floats:
    """[N, K] the losses that a policy learns from: selection losses summed over the exchange; NaN if not observed."""
    total = selection_loss(losses, bound).sum(axis=1)
    return np.where(observed, total, np.nan)
