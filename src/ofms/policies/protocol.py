"""The parts of a policy: a client half, a server half, and how clients fine-tune.

A half is pure: state and arrays in, state and arrays out. It sees only its arguments; losses of models that a client
does not hold never reach it. `ofms.policies.session` keeps client numbers, versions, exchange
numbers and messages, so the same halves run N clients at once in the simulator, one at a time in the loopback, and on a
device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from ofms.core.draws import ClientDraws, Draws
from ofms.core.messages import Catalogue, Grants, Plan, Reports
from ofms.core.pooling import Pooling
from ofms.core.robust import SUM, Aggregation
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import LocalUpdate
from ofms.policies.observations import Observations
from ofms.policies.settings import LossBound

State = TypeVar("State")


class ClientHalf(Protocol[State]):
    """The part that runs on devices: a frozen dataclass of plain values, which the server sends to them.

    Arrays have a leading client axis; a device is the case N = 1. A state is a dataclass of arrays and plain values, or
    None.
    """

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        """The initial state of clients with [N] budgets."""
        ...

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags | None]:
        """[N, K] the models that clients request until the next exchange; None if the server decides."""
        ...

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        """Set the weights with which the granted models predict and are fine-tuned.

        The grant may be of a later exchange than the one that the client selected for.
        """
        ...

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        """Learn from the losses of the exchange and, if the policy remembers samples, from outputs on the last ones."""
        ...


@dataclass(frozen=True, eq=False)
class SummedUpdates:
    """What a server half sees of an exchange's updates.

    Attributes
    ----------
    clients
        The number of clients in the exchange.
    products, norms
        [K] the inner product of each model's summed updates with the direction in which it moves, which differs from
        them by `Policy.momentum`, and the norm of the direction; 0 if there are no updates.
    parameters
        [K] the norm of the parameters that they update.
    restored, gains
        [K] the models that go back to their first versions in this exchange, and by which share fine-tuning reduced
        the errors of the fleet, for the models that it made better; 0 except in a control exchange.
    awaited
        The number of further clients whose reports on the exchange may come later.
    """

    clients: int
    products: Floats
    norms: Floats
    parameters: Floats
    restored: Flags
    gains: Floats
    awaited: int = 0


class ServerHalf(Protocol[State]):
    """The part that runs on the server."""

    def start(self, catalogue: Catalogue) -> State:
        """The state before the first exchange."""
        ...

    def grant(self, state: State, wanted: Flags, draws: Draws) -> tuple[State, Flags, Floats | None]:
        """[N, K] models that clients hold, given their requests; [N, K] prediction weights if the server sets them."""
        ...

    def learn(self, state: State, reports: Reports, summed: SummedUpdates) -> tuple[State, Floats | float]:
        """Learn from the reports; return the step (per model, or one for all) along the direction of the updates."""
        ...


@runtime_checkable
class LateLearner(Protocol[State]):
    """A server half whose estimates of losses need the probabilities of the exchange in which they were observed."""

    def learn_late(self, state: State, then: State, reports: Reports, clients: int) -> State:
        """Learn from reports on an earlier exchange: `then` is the state after its grants, for so many `clients`."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientPolicy:
    """The part of a policy that a device knows.

    Attributes
    ----------
    name
        As in the registry, for messages.
    local
        How a client fine-tunes the models that it holds; None for no fine-tuning.
    loss_bound
        How the task's loss is bounded for selection and regret.
    observes
        The models whose losses a client observes: all `held` ones, or only the `predicting` ones.
    reports_losses
        Whether clients report losses for the server to learn from.
    reports_use
        Whether clients report the losses of the models that they fine-tune on the remembered samples, times the weight
        of their updates.
    weighs_by_use
        Whether the weights of updates say which models a client predicts with.
    remembers
        The number of last samples on which a client evaluates the models that it did not hold before.
    pooling
        How models are mixed in a prediction: `mean` of values or class probabilities, or `log`, the mean of values or
        log-probabilities.
    own_model
        A model of which every client has a copy of its own: it starts from the shared parameters when they are sent,
        is fine-tuned by `local` after every exchange with weight 1, predicts in place of the shared model, and is never
        uploaded (its update weight must be 0).
    uploaded
        The models whose updates clients upload; None for all that they hold.
    offset_memories
        Discounts γ with which clients learn offsets that they add to their predictions (`ofms.policies.offsets`); none
        for no offset. The policy must remember samples.
    """

    name: str = ""
    client: ClientHalf[Any]
    local: LocalUpdate | None = None
    loss_bound: LossBound
    observes: Literal["held", "predicting"] = "held"
    reports_losses: bool = False
    reports_use: bool = False
    weighs_by_use: bool = False
    remembers: int = 0
    pooling: Pooling = "mean"
    own_model: int | None = None
    uploaded: tuple[int, ...] | None = None
    offset_memories: tuple[float, ...] = ()

    def tuned(self, held: Flags) -> Flags:
        """[N, K] the held models whose updates clients upload."""
        return held if self.uploaded is None else held & np.isin(np.arange(held.shape[1]), self.uploaded)

    def observed(self, plan: Plan) -> Flags:
        """[N, K] the models that a client evaluates when a label arrives."""
        return plan.held if self.observes == "held" else plan.prediction_weights > 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Policy(ClientPolicy):
    """An algorithm built for a fleet.

    Attributes
    ----------
    expected_weights
        [N, K] or [1, K] expected prediction weights from both states, before they learn from the exchange; only for
        measuring regret.
    upload_groups
        Number of upload groups, regardless of the bandwidth; None to derive it from the bandwidth.
    mixes
        Whether predictions are mixtures, so that a client incurs the loss of its prediction, not the expected loss of
        one drawn model; only for measuring regret. Logarithmic pools always are.
    momentum
        The decay of the server's momentum: a model moves along its summed updates plus so much of the last direction.
    square_momentum
        The decay of the mean squares of updates, by whose root FedAdam divides their mean; 0 for plain momentum.
    aggregation
        How the clients' updates become one. It is of the run or the fleet: a policy need not set it.
    bound
        [N] upper bound on each client's expected cumulative regret, or None; then `not_covered` says why.
    """

    server: ServerHalf[Any]
    expected_weights: Callable[[Any, Any], Floats]
    upload_groups: int | None = None
    mixes: bool = False
    momentum: float = 0.0
    square_momentum: float = 0.0
    aggregation: Aggregation = SUM
    bound: Floats | None = None
    not_covered: str = "no theorem bounds its clients' regret"

    @property
    def incurs_prediction(self) -> bool:
        """Whether regret counts the losses of predictions."""
        return self.mixes or self.pooling == "log"


@runtime_checkable
class ModelChoice(Protocol):
    """Settings with a model of which the policy chooses one if they name none; it stays while it is in use."""

    model: int | str | None

    def chosen_model(self, catalogue: Catalogue) -> int | None:
        """The index of the model; None if the policy needs none."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """What a policy's module exports: its settings, the class of its client half, and its builder for a fleet."""

    settings: type[Any]
    client: type[Any]
    build: Callable[[Any, Fleet], Policy]
