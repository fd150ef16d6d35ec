"""The compute interface of a simulation: losses and scores of clients, updates of models.

A simulation depends on this protocol only. Threads, processes and hardware are internal to `ofms.compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import torch

from ofms.core.pooling import Pooling
from ofms.core.schedule import Window
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.policies.local_updates import LocalUpdate

Tensors = dict[str, torch.Tensor]
Result = TypeVar("Result")
# [P] one update from a model's number, [m] clients, their [m, P] weighted updates, and the norm of its parameters.
Combine = Callable[[int, Integers, AnyArray, float], AnyArray]


@dataclass(frozen=True)
class Adaptation:
    """Clients predict with copies that take one gradient step of size `rate` on the samples of `window`."""

    window: Window
    rate: float


class ClientCopies(Protocol):
    """The clients' own copies of one model, `ofms.compute.own_copies`."""

    model: int

    def pieces(self, clients: Flags) -> list[Integers]:
        """[N] clients in pieces that are evaluated at once."""
        ...

    def outputs(self, rows: Integers, span: tuple[int, int]) -> torch.Tensor:
        """[M, n, C] outputs of some clients' copies on their samples of rounds `span`."""
        ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of evaluating models on the samples of n rounds.

    Attributes
    ----------
    scores
        [N, n] scores of the clients' predictions, which the metric averages.
    client_losses
        [N, n, K] the losses that clients incur with each model, of adapted or own copies if they have some; NaN for a
        model that was not evaluated.
    losses, model_scores
        [N, n, K] losses and scores of each shared model by itself; NaN if it was not evaluated.
    prediction_losses
        [N, n] losses of the clients' predictions, mixed as `pooling` says.
    outputs
        [N, L, K, C] outputs of held models on the last L samples, those of the span included; NaN where a model was
        not evaluated. None if no past samples were asked for.
    """

    scores: Floats
    client_losses: Floats
    losses: Floats
    model_scores: Floats
    prediction_losses: Floats
    outputs: AnyArray | None = None


@dataclass(frozen=True, eq=False)
class Summed:
    """The clients' updates of an exchange.

    Attributes
    ----------
    updates
        By model: its updates, weighted and summed; a sum may overflow.
    left_out
        Clients and models whose updates are not finite: they are not in the sums.
    """

    updates: dict[int, Tensors]
    left_out: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ShardUpdates:
    """The clients' updates of an exchange by shard and model, weighted and summed within shards; a sum may overflow.

    `left_out` as in `Summed`.
    """

    shards: dict[int, dict[int, Tensors]]
    left_out: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Pending(Generic[Result]):
    """A result in progress; `result` waits for it. Further calls can be started before, to keep workers busy."""

    finish: Callable[[], Result]

    def result(self) -> Result:
        return self.finish()


class Compute(Protocol):
    """Computation on the models' parameters and the clients' samples.

    A context manager. Collect pending results before `apply` changes the parameters. `shards` is the number of shards,
    in all processes; `like`, an empty tensor, has the type and device of updates.
    """

    shards: int
    like: torch.Tensor

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def evaluate(
        self,
        span: tuple[int, int],
        held: Flags,
        prediction_weights: Floats,
        *,
        hindsight: bool,
        adaptation: Adaptation | None = None,
        pooling: Pooling = "mean",
        late: Integers | None = None,
        own: ClientCopies | None = None,
        offset: Floats | None = None,
    ) -> Pending[Evaluation]:
        """Evaluate the [N, K] held models on the samples of rounds `span`; with `hindsight`, all models.

        Predictions are mixed with the [N, K] `prediction_weights` as `pooling` says, and the [N, C] `offset` is added.
        `late` asks for outputs: on the span, and on so many [N, K] samples before it. Outputs that are not finite count
        as the largest numbers, and are left out of predictions where other models predict too. Clients evaluate their
        `own` copies of one model.
        """
        ...

    def update(
        self,
        window: Window,
        update_weight: Floats,
        local: LocalUpdate,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> Pending[ShardUpdates]:
        """The clients' updates on the samples of `window`, weighted by [N, K] `update_weight` and summed by shard.

        [N, K] `prediction_weights` are those of the pool, if its loss is what clients reduce. A gradient step reduces
        losses of outputs to which the [N, C] `offset` of predictions is added: it does not learn what that corrects.
        """
        ...

    def combine(
        self,
        parts: Sequence[tuple[Window, Floats]],
        local: LocalUpdate,
        prediction_weights: Floats,
        combine: Combine,
        offset: Floats | None = None,
    ) -> Pending[Summed]:
        """The same with each client's own update formed, and those of a model made one by `combine`.

        `parts` are windows with the [N, K] weights of the clients that fine-tune on them.
        """
        ...

    def sizes(self, updates: dict[int, Tensors], directions: dict[int, Tensors]) -> tuple[Floats, Floats, Floats]:
        """[K] inner products of summed updates and directions, norms of directions, and of the parameters."""
        ...

    def apply(self, directions: dict[int, Tensors], step: Floats) -> None:
        """θ_k ← θ_k + step_k · Δ_k, eq. (3r2)."""
        ...

    def state(self, model: int) -> Tensors:
        """A copy of a model's parameters and buffers, in main memory."""
        ...

    def load_state(self, model: int, tensors: Tensors) -> None:
        """Set a model's parameters and buffers."""
        ...
