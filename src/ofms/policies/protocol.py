"""What every policy is made of: a client half, a server half, and messages between them.

A half is a pure function of its state: state and message in, state and message out. The same halves run N clients
at once in the simulator, one at a time in the loopback and on a device. What a half may not do is look at anything
that did not come in a message; in particular, losses of models that a client does not hold never reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.packing import smallest_budget
from ofms.core.schedule import Schedule, Window, past_window, tuning_window
from ofms.core.selection_loss import BOUNDS
from ofms.core.typing import Flags, Floats, Integers

State = TypeVar("State")


class ClientHalf(Protocol[State]):
    """What runs on the devices. Arrays have a leading client axis; a device is the case N = 1."""

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> State:
        """The state of clients that have seen nothing yet."""
        ...

    def request(self, state: State, draws: Draws) -> tuple[State, Requests]:
        """Say which models to hold until the next exchange."""
        ...

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        """Decide with which models to predict, and with what weight to fine-tune."""
        ...

    def learn(self, state: State, plan: Plan, losses: Floats) -> tuple[State, Reports]:
        """Learn from the [N, K] selection losses of the exchange, summed over its rounds.

        NaN for models that are not held, and for those that the policy need not know (`Policy.learns_from`).
        """
        ...


class ServerHalf(Protocol[State]):
    """What runs on the server."""

    def open(self, catalogue: Catalogue, bandwidth: int) -> State:
        """The state before the first exchange."""
        ...

    def grant(self, state: State, requests: Requests, draws: Draws) -> tuple[State, Grants]:
        """Say what each client holds and who uploads."""
        ...

    def absorb(self, state: State, reports: Reports) -> tuple[State, Floats]:
        """Learn from the reports; [K] the step with which the summed updates of each model are applied."""
        ...


@dataclass(frozen=True)
class GradientStep:
    """One gradient step of size `rate` on the window's loss, eq. (1r2)."""

    copies: ClassVar[int] = 1
    rate: float
    window: int
    warm_up: int


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
    """Meta-learning: updates are taken at an adapted copy of the parameters, which also predicts.

    `adaptation_rate` is the size of the step that adapts, `rate` that of the step on the shared parameters.
    """

    copies: ClassVar[int] = 2
    rate: float
    adaptation_rate: float
    epochs: int
    batch_size: int
    window: int
    warm_up: int


LocalUpdate = GradientStep | Epochs | Adapted


@dataclass(frozen=True, eq=False)
class Fleet:
    """For whom a policy is built: the models, the clients' memory, the bandwidth, and the time they have."""

    catalogue: Catalogue
    budgets: Integers
    bandwidth: int
    schedule: Schedule

    def require_upload(self, largest: int) -> None:
        """Refuse a bandwidth that some client's update could never get through (1r2)."""
        if self.bandwidth < largest:
            raise InvalidInput(
                "bandwidth",
                f"{self.bandwidth} bytes",
                f"a client may have to upload {largest} bytes at once; give at least that",
            )


@dataclass(frozen=True, eq=False)
class Policy:
    """An algorithm, ready to run.

    Attributes
    ----------
    local
        How a client fine-tunes what it holds, or None where it does not.
    loss_bound
        How the task's loss becomes the loss of selection and regret.
    expected_weights
        [N, K] the expected prediction weights from both states, before the exchange is learnt from. For measuring
        regret alone: it is never sent.
    bound
        [N] upper bound on each client's expected cumulative regret, or None.
    not_covered
        Why there is no bound.
    reports_losses
        Whether clients report losses, from which the server learns.
    learns_from
        Whose losses a client must know: those of all models that it `holds`, or of what `votes` alone.
    """

    name: str
    client: ClientHalf[Any]
    server: ServerHalf[Any]
    local: LocalUpdate | None
    loss_bound: str
    expected_weights: Callable[[Any, Any], Floats]
    bound: Floats | None = None
    not_covered: str = "no theorem bounds its clients' regret"
    reports_losses: bool = False
    learns_from: Literal["holds", "votes"] = "holds"

    def observed(self, plan: Plan) -> Flags:
        """[N, K] the models that a client evaluates when a label comes."""
        return plan.held if self.learns_from == "holds" else plan.prediction_weights > 0


@dataclass(frozen=True)
class Algorithm:
    """What a policy's module offers: its settings, the class of its client half, and how it is built for a fleet."""

    settings: type[Any]
    client: type[Any]
    build: Callable[[Any, Fleet], Policy]


def tuning_window_of(local: LocalUpdate | None, schedule: Schedule, exchange: int) -> Window | None:
    """The samples on which clients fine-tune in an exchange, or None where they do not."""
    if local is None or local.rate == 0:
        return None
    window = tuning_window(schedule.span(exchange), local.window, local.warm_up)
    if window is not None and not isinstance(local, GradientStep):
        # Passes over the samples that a client keeps: the last ones, all alike.
        return past_window(window.stop, local.window)
    return window


def models_to_send(held: Flags, holding: Integers, version: Integers) -> Flags:
    """What is held and not there in the current version."""
    sent: Flags = held & (holding != version)
    return sent


def versions_after(reports: Reports, version: Integers) -> Integers:
    """A model that somebody updated has a new version."""
    return version + reports.updated.any(axis=0)


def versions_held(held: Flags, version: Integers) -> Integers:
    """What a client has after a grant: the current version of what it holds, -1 for the rest."""
    return np.where(held, version, -1)


def require_common_settings(loss_bound: str, window: int = 1, warm_up: int = 0) -> None:
    """Refuse settings, common to many policies, that make no sense."""
    if loss_bound not in BOUNDS:
        raise InvalidInput("loss_bound", loss_bound, f"use one of {', '.join(BOUNDS)}")
    if window < 1:
        raise InvalidInput("window", window, "give at least 1, the current sample")
    if warm_up < 0:
        raise InvalidInput("warm_up", warm_up, "give a round, 0 for the first one")


def require_budgets(catalogue: Catalogue, budgets: Integers) -> None:
    """Refuse a dictionary of one model, and a budget under (a2)."""
    if len(catalogue) < 2:
        raise InvalidInput("models", len(catalogue), "selection needs a dictionary of at least 2 models")
    least = smallest_budget(catalogue.storage)
    if budgets.size == 0:
        raise InvalidInput("clients", 0, "give at least 1")
    if budgets.min() < least:
        raise InvalidInput(
            "budget",
            f"{int(budgets.min())} bytes",
            f"it must hold the two largest models together; give at least {least} bytes",
        )
