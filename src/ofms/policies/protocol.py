"""What a policy is made of: a client half, a server half, and how clients fine-tune.

A half is a pure function of its state: state and arrays in, state and arrays out. It sees only its arguments; losses of
models that a client does not hold never reach it. `ofms.policies.session` keeps client numbers, versions, exchange
numbers and messages, so the same halves run N clients at once in the simulator, one at a time in the loopback, and on a
device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from ofms.core.draws import ClientDraws, Draws
from ofms.core.messages import Catalogue, Grants, Plan, Reports
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import LocalUpdate
from ofms.policies.settings import LossBound

State = TypeVar("State")


class ClientHalf(Protocol[State]):
    """What runs on the devices: a frozen dataclass of plain values, which a server sends to them.

    Arrays have a leading client axis; a device is the case N = 1. A state is a dataclass of arrays and plain values, or
    None.
    """

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        """The state of clients with [N] budgets that have seen nothing yet."""
        ...

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags | None]:
        """[N, K] the models that clients ask for until the next exchange; None where the server decides."""
        ...

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        """Decide with which weights the granted models predict and are fine-tuned."""
        ...

    def learn(self, state: State, plan: Plan, losses: Floats) -> State:
        """Learn from the [N, K] selection losses of the exchange, summed over its rounds.

        NaN for models that the policy does not observe (`ClientPolicy.observes`).
        """
        ...


class ServerHalf(Protocol[State]):
    """What runs on the server."""

    def start(self, catalogue: Catalogue) -> State:
        """The state before the first exchange."""
        ...

    def grant(self, state: State, wanted: Flags, draws: Draws) -> tuple[State, Flags, Floats | None]:
        """[N, K] what clients hold, given what they asked for; [N, K] prediction weights where the server decides."""
        ...

    def learn(self, state: State, reports: Reports, clients: int) -> tuple[State, Floats | float]:
        """Learn from the reports; the step (by model, or one for all) along the summed updates of `clients` clients."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientPolicy:
    """What a device knows of a policy.

    Attributes
    ----------
    local
        How a client fine-tunes what it holds, or None where it does not.
    loss_bound
        How the task's loss becomes the loss of selection and regret.
    observes
        Whose losses a client observes: all models `held`, or the `predicting` ones alone.
    reports_losses
        Whether clients report losses, from which the server learns.
    """

    client: ClientHalf[Any]
    local: LocalUpdate | None = None
    loss_bound: LossBound
    observes: Literal["held", "predicting"] = "held"
    reports_losses: bool = False

    def observed(self, plan: Plan) -> Flags:
        """[N, K] the models that a client evaluates when a label arrives."""
        return plan.held if self.observes == "held" else plan.prediction_weights > 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Policy(ClientPolicy):
    """An algorithm built for a fleet.

    Attributes
    ----------
    expected_weights
        [N, K] or [1, K] expected prediction weights from both states, before the exchange is learnt from: for measuring
        regret alone.
    upload_groups
        The number of upload groups, whatever the bandwidth is; None to derive it from the bandwidth.
    bound
        [N] upper bound on each client's expected cumulative regret, or None; then `not_covered` says why.
    """

    name: str = ""
    server: ServerHalf[Any]
    expected_weights: Callable[[Any, Any], Floats]
    upload_groups: int | None = None
    bound: Floats | None = None
    not_covered: str = "no theorem bounds its clients' regret"


@dataclass(frozen=True)
class Algorithm:
    """What a policy's module offers: its settings, the class of its client half, and how it is built for a fleet."""

    settings: type[Any]
    client: type[Any]
    build: Callable[[Any, Fleet], Policy]
