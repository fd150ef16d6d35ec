"""Descriptions of how a client fine-tunes the models that it holds; `ofms.compute` implements them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ofms.core.schedule import Schedule, Window, past_window, tuning_window

Objective = Literal["own", "pool", "auto"]


@dataclass(frozen=True)
class GradientStep:
    """One gradient step of size `rate` on the window's loss, eq. (1r2); none before round `warm_up`.

    Clients fine-tune in one of `every` exchanges, for each model's `own` loss or for that of their `pool`;
    `auto` is `pool` for regression and `own` for classification. After one of `control_every` exchanges they compare
    models with their first versions; never if it is 0.
    """

    copies: ClassVar[int] = 1
    rate: float
    window: int
    warm_up: int
    every: int = 1
    objective: Objective = "own"
    control_every: int = 0


@dataclass(frozen=True)
class Epochs:
    """Stochastic gradient descent over the window, in the order of its samples."""

    copies: ClassVar[int] = 1
    rate: float
    epochs: int
    batch_size: int
    window: int
    warm_up: int


@dataclass(frozen=True)
class Adapted:
    """Meta-learning: gradients are taken at an adapted copy of the parameters, which also predicts.

    `adaptation_rate` is the size of the adaptation step, `rate` that of the step on the shared parameters.
    """

    copies: ClassVar[int] = 2
    rate: float
    adaptation_rate: float
    epochs: int
    batch_size: int
    window: int
    warm_up: int


LocalUpdate = GradientStep | Epochs | Adapted


def copies_held(local: LocalUpdate | None) -> int:
    """Copies that a client keeps of a held model: two if it predicts with an adapted copy."""
    return 1 if local is None else local.copies


def tunes_pool(local: LocalUpdate | None, task: str) -> bool:
    """Whether gradients are those of the pool's loss, so that they need the outputs of all models in the pool."""
    if not isinstance(local, GradientStep):
        return False
    return local.objective == "pool" or (local.objective == "auto" and task == "regression")


def is_control(local: LocalUpdate | None, exchange: int) -> bool:
    """Whether clients hold the first versions of models in an exchange, to compare them with the fine-tuned ones.

    It follows an exchange after which models have new versions anyway, so that it costs one more download of each.

    >>> step = GradientStep(0.1, window=50, warm_up=0, every=3, control_every=6)
    >>> [exchange for exchange in range(20) if is_control(step, exchange)]
    [4, 7, 13, 19]
    """
    if not isinstance(local, GradientStep) or not local.rate or not local.control_every or exchange < 2:
        return False
    # The first one sooner, so that harm does not last.
    return (exchange - 1) % local.control_every == 0 or exchange - 1 == local.control_every // 2


def last_control(local: LocalUpdate | None, exchange: int) -> int:
    """The control exchange before an exchange; -1 if there is none.

    >>> step = GradientStep(0.1, window=50, warm_up=0, every=3, control_every=6)
    >>> [last_control(step, exchange) for exchange in (3, 4, 5, 7, 8)]
    [-1, -1, 4, 4, 7]
    """
    return next((before for before in range(exchange - 1, -1, -1) if is_control(local, before)), -1)


def tuning_window_of(local: LocalUpdate | None, schedule: Schedule, exchange: int) -> Window | None:
    """The samples on which clients fine-tune in an exchange, or None if they do not fine-tune."""
    if local is None or local.rate == 0:
        return None
    if isinstance(local, GradientStep) and (exchange % local.every or is_control(local, exchange)):
        return None
    window = tuning_window(schedule.span(exchange), local.window, local.warm_up)
    if window is not None and not isinstance(local, GradientStep):
        # Epochs run over the last `window` samples, equally weighted.
        return past_window(window.stop, local.window)
    return window


def adaptation_window_of(local: LocalUpdate | None, schedule: Schedule, exchange: int) -> Window | None:
    """The past samples to which clients adapt before they predict in an exchange, or None if they do not adapt."""
    first = schedule.span(exchange)[0]
    if not isinstance(local, Adapted) or first < local.warm_up:
        return None
    return past_window(first, local.window)
