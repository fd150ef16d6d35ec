"""The fast simulator: all clients at once on the engine, one weighted backward pass a model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ofms.compute.engine import Engine
from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
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
        self.engine = Engine(dictionary, stream, dtype=dtype, workers=workers)

    def parameters(self) -> Parameters:
        """A copy of the dictionary's parameters and buffers as they are now."""
        return [self.engine.state(model) for model in range(len(self.fleet.catalogue))]

    def exchanges(self) -> Iterator[Exchange]:
        """All exchanges, one after the other."""
        client_state = self.policy.client.join(self.fleet.catalogue, self.fleet.budgets, np.arange(self.stream.clients))
        server_state = self.policy.server.open(self.fleet.catalogue, self.fleet.bandwidth)
        with self.engine:
            for exchange in range(self.fleet.schedule.exchanges):
                client_state, server_state, record = self._exchange(exchange, client_state, server_state)
                yield record

    def _exchange(self, exchange: int, client_state: object, server_state: object) -> tuple[object, object, Exchange]:
        policy, engine, local = self.policy, self.engine, self.policy.local
        span = self.fleet.schedule.span(exchange)
        draws = Draws(self.seed, exchange)
        client_state, requests = policy.client.request(client_state, draws)
        server_state, grants = policy.server.grant(server_state, requests, draws)
        client_state, plan = policy.client.plan(client_state, grants)
        expected_vote = policy.expected_vote(client_state, server_state)

        # What is updated is in the plan, so that fine-tuning need not wait for what the losses teach.
        evaluation = engine.evaluate(span, plan.held, hindsight=self.hindsight)
        past = adaptation_window(local, self.fleet.schedule, exchange)
        adapted = None
        if past is not None and isinstance(local, Adapted):
            adapted = engine.evaluate_adapted(span, plan.held, past, local.adaptation_rate)
        window = tuning_window_of(local, self.fleet.schedule, exchange)
        update = None
        if window is not None and local is not None:
            update = engine.update(window, plan.pull, local)

        shared = evaluation.result()
        own = adapted.result() if adapted else shared
        losses = policy_losses(own.losses, plan.held, policy.loss_bound)
        client_state, reports = policy.client.learn(client_state, plan, losses)
        server_state, step = policy.server.absorb(server_state, reports)
        targets = self.stream.y[:, span[0] : span[1]]
        record = Exchange(
            index=exchange,
            span=span,
            grants=grants,
            plan=plan,
            traffic=count_bytes(self.fleet.catalogue, grants, reports, local.copies if local else 1),
            scores=client_scores(own.outputs, plan.vote, targets, engine.task),
            losses=shared.losses,
            model_scores=model_scores(shared.outputs, targets, engine.task),
            played=np.where(plan.held[:, None], own.losses, shared.losses),
            expected_vote=expected_vote,
        )
        if update:
            engine.apply(update.result(), step)
        return client_state, server_state, record
