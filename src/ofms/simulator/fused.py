"""The fast simulator: all clients at once on the engine, one weighted backward pass a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from ofms.compute.threads import ThreadedCompute
from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.protocol import Adapted, Fleet, Policy, tuning_window_of
from ofms.simulator.exchange import (
    Exchange,
    adaptation_window,
    client_scores,
    model_scores,
    policy_losses,
)

Parameters = list[dict[str, torch.Tensor]]


class FusedSimulation:
    """Run a policy for N clients at once.

    Iterate over `exchanges()`; `parameters()` are those after the exchanges so far.
    """

    def __init__(
        self,
        policy: Policy,
        fleet: Fleet,
        dictionary: Dictionary,
        stream: Stream,
        *,
        seed: int,
        hindsight: bool = True,
        dtype: torch.dtype = torch.float32,
        workers: int | None = None,
    ) -> None:
        self.policy, self.fleet, self.stream = policy, fleet, stream
        self.seed, self.hindsight = seed, hindsight
        self.engine = ThreadedCompute(dictionary, stream, dtype=dtype, workers=workers)
        # The dictionary as it was: what the same choices would have come to without fine-tuning.
        self.frozen: ThreadedCompute | None = None
        if hindsight and policy.local is not None and policy.local.rate > 0:
            self.frozen = ThreadedCompute(dictionary, stream, dtype=dtype, workers=workers)
        self.client_state = policy.client.join(fleet.catalogue, fleet.budgets, np.arange(stream.clients))
        self.server_state = policy.server.open(fleet.catalogue, fleet.bandwidth)
        self.next_exchange = 0

    def parameters(self) -> Parameters:
        """A copy of the dictionary's parameters and buffers as they are now."""
        return [self.engine.state(model) for model in range(len(self.fleet.catalogue))]

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """Everything that changes from exchange to exchange, as arrays and values."""
        arrays: dict[str, AnyArray] = {}
        values: dict[str, Any] = {"next_exchange": self.next_exchange}
        for half, state in (("client", self.client_state), ("server", self.server_state)):
            part_arrays, part_values = flatten(state, f"{half}.")
            arrays |= part_arrays
            values |= part_values
        for model in range(len(self.fleet.catalogue)):
            arrays |= {f"model.{model}.{name}": tensor.numpy() for name, tensor in self.engine.state(model).items()}
        return arrays, values

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        """Go on from what was taken apart."""
        self.client_state = unflatten(self.client_state, arrays, values, "client.")
        self.server_state = unflatten(self.server_state, arrays, values, "server.")
        for model in range(len(self.fleet.catalogue)):
            prefix = f"model.{model}."
            state = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            self.engine.load_state(model, {name: torch.from_numpy(array) for name, array in state.items()})
        self.next_exchange = int(values["next_exchange"])

    def exchanges(self) -> Iterator[Exchange]:
        """All exchanges that are left, one after the other."""
        with self.engine, self.frozen or nullcontext():
            while self.next_exchange < self.fleet.schedule.exchanges:
                yield self._exchange(self.next_exchange)

    def _exchange(self, exchange: int) -> Exchange:
        policy, engine, local = self.policy, self.engine, self.policy.local
        client_state, server_state = self.client_state, self.server_state
        span = self.fleet.schedule.span(exchange)
        draws = Draws(self.seed, exchange)
        client_state, requests = policy.client.request(client_state, draws)
        server_state, grants = policy.server.grant(server_state, requests, draws)
        client_state, plan = policy.client.plan(client_state, grants)
        expected_weights = policy.expected_weights(client_state, server_state)

        # What is updated is in the plan, so that fine-tuning need not wait for what the losses teach.
        evaluation = engine.evaluate(span, plan.held, hindsight=self.hindsight)
        past = adaptation_window(local, self.fleet.schedule, exchange)
        adapted = None
        if past is not None and isinstance(local, Adapted):
            adapted = engine.evaluate_adapted(span, plan.held, past, local.adaptation_rate)
        window = tuning_window_of(local, self.fleet.schedule, exchange)
        update = None
        if window is not None and local is not None:
            update = engine.update(window, plan.update_weight, local)

        shared = evaluation.result()
        own = adapted.result() if adapted else shared
        losses = policy_losses(own.losses, plan.held, policy.loss_bound)
        client_state, reports = policy.client.learn(client_state, plan, losses)
        server_state, step = policy.server.absorb(server_state, reports)
        targets = self.stream.y[:, span[0] : span[1]]
        scores = client_scores(own.outputs, plan.prediction_weights, targets, engine.task)
        frozen_scores = scores
        if self.frozen is not None and span[0] >= (local.warm_up if local else 0):
            frozen = self.frozen.evaluate(span, plan.prediction_weights > 0, hindsight=False).result()
            frozen_scores = client_scores(frozen.outputs, plan.prediction_weights, targets, engine.task)
        record = Exchange(
            index=exchange,
            span=span,
            grants=grants,
            plan=plan,
            traffic=count_bytes(self.fleet.catalogue, grants, reports, local.copies if local else 1),
            scores=scores,
            frozen_scores=frozen_scores if self.frozen is not None else None,
            losses=shared.losses,
            model_scores=model_scores(shared.outputs, targets, engine.task),
            client_losses=np.where(plan.held[:, None], own.losses, shared.losses),
            expected_weights=expected_weights,
        )
        if update:
            engine.apply(update.result(), step)
        self.client_state, self.server_state, self.next_exchange = client_state, server_state, exchange + 1
        return record
