"""What happened in an exchange: the record that both simulators make and that measurements read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.compute.tasks import mixed_predictions, scores
from ofms.core.ledger import Traffic
from ofms.core.messages import Grants, Plan
from ofms.core.schedule import Schedule, Window, past_window
from ofms.core.selection_loss import selection_loss
from ofms.core.typing import AnyArray, Flags, Floats
from ofms.models.dictionary import Task
from ofms.policies.protocol import Adapted, LocalUpdate


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
        [N, n, K] the task's losses of what was held; of all models in hindsight; else NaN.
    model_scores
        [N, n, K] likewise for each model by itself.
    client_losses
        [N, n, K] the losses that clients incur with each model: of adapted copies where a policy adapts.
    expected_weights
        [N, K] E_t[prediction_weights].
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


def policy_losses(losses: Floats, held: Flags, bound: str) -> Floats:
    """[N, K] what a policy learns from: selection losses of held models, summed over the exchange; NaN for the rest."""
    total = selection_loss(losses, bound).sum(axis=1)
    return np.where(held, total, np.nan)


def client_scores(outputs: AnyArray, prediction_weights: Floats, targets: AnyArray, task: Task) -> Floats:
    """[N, n] the scores of the predictions that clients make from [N, n, K, C] outputs."""
    return scores(mixed_predictions(outputs, prediction_weights, task), targets, task)


def model_scores(outputs: AnyArray, targets: AnyArray, task: Task) -> Floats:
    """[N, n, K] the score of each model by itself; NaN where it has no output."""
    each = scores(outputs, targets[..., None], task)
    return np.where(np.isfinite(outputs[..., 0]), each, np.nan)


def adaptation_window(local: LocalUpdate | None, schedule: Schedule, exchange: int) -> Window | None:
    """The past samples to which clients adapt before an exchange's predictions, or None where they do not."""
    first = schedule.span(exchange)[0]
    if not isinstance(local, Adapted) or first < local.warm_up:
        return None
    return past_window(first, local.window)
