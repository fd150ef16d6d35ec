"""The loopback: the same halves one client at a time, through messages, with ordinary local training.

It is the oracle for the fused simulator, and the rehearsal for a deployment: a client has only what was sent to it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch.func import functional_call

from ofms.compute.checks import is_finite, not_finite_update, require_finite_losses, require_fit
from ofms.compute.local import LocalNetworks, Tensors
from ofms.compute.tasks import sample_losses
from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
from ofms.core.messages import Grants, Plan, Reports, Requests
from ofms.core.schedule import Schedule, Window
from ofms.core.typing import AnyArray, Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.speed import one_thread_a_worker
from ofms.policies.protocol import (
    Adapted,
    Fleet,
    LocalUpdate,
    Policy,
    tuning_window_of,
)
from ofms.simulator.exchange import (
    Exchange,
    adaptation_window,
    client_scores,
    model_scores,
    policy_losses,
)

P = ParamSpec("P")
R = TypeVar("R")


def _timed(
    method: Callable[Concatenate[LoopbackClient, P], R],
) -> Callable[Concatenate[LoopbackClient, P], R]:
    """Count what a client's method takes of its thread's processor time."""

    @wraps(method)
    def counted(client: LoopbackClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        began = time.thread_time()
        try:
            return method(client, *args, **kwargs)
        finally:
            client.seconds += time.thread_time() - began

    return counted


@dataclass(eq=False)
class LoopbackClient:
    """A device: its state, its samples, the parameters that it was sent and still holds, and its processor time."""

    policy: Policy
    schedule: Schedule
    models: int
    networks: LocalNetworks
    x: torch.Tensor
    y: torch.Tensor
    state: object
    store: dict[int, Tensors] = field(default_factory=dict)
    seconds: float = 0.0

    @_timed
    def request(self, draws: Draws) -> Requests:
        self.state, requests = self.policy.client.request(self.state, draws)
        return requests

    @_timed
    def receive(self, grants: Grants, sent: dict[int, Tensors]) -> Plan:
        """Keep what is granted, let the rest go."""
        self.state, plan = self.policy.client.plan(self.state, grants)
        held = set(np.flatnonzero(plan.held[0]).tolist())
        copies = {model: {name: tensor.clone() for name, tensor in tensors.items()} for model, tensors in sent.items()}
        self.store = {model: tensors for model, tensors in (self.store | copies).items() if model in held}
        if set(self.store) != held:
            raise AssertionError(f"granted {sorted(held)}, has {sorted(self.store)}")
        return plan

    @_timed
    def predict(self, exchange: int, plan: Plan) -> tuple[AnyArray, Floats]:
        """[n, K, C] outputs and [n, K] losses of what it has to evaluate, NaN for the rest, sample by sample."""
        first, stop = self.schedule.span(exchange)
        losses = np.full((stop - first, self.models), np.nan)
        outputs: dict[int, torch.Tensor] = {}
        for model in np.flatnonzero(self.policy.observed(plan)[0]).tolist():
            tensors = self._tensors(model, exchange)
            with torch.no_grad():
                steps = [self.networks.outputs(model, tensors, self.x[step : step + 1]) for step in range(first, stop)]
                outputs[model] = torch.cat(steps)
                losses[:, model] = sample_losses(outputs[model], self.y[first:stop], self.networks.task).numpy()
        width = next(iter(outputs.values())).shape[-1]
        table = np.full((stop - first, self.models, width), np.nan)
        for model, output in outputs.items():
            table[:, model] = output.numpy()
        return table, losses

    @_timed
    def learn(self, plan: Plan, losses: Floats) -> Reports:
        self.state, reports = self.policy.client.learn(self.state, plan, losses)
        return reports

    @_timed
    def fine_tune(self, window: Window, plan: Plan, reports: Reports, local: LocalUpdate) -> dict[int, Tensors]:
        """The weighted updates that it uploads."""
        return {
            int(model): self._update(int(model), window, float(plan.update_weight[0, model]), local)
            for model in np.flatnonzero(reports.updated[0])
        }

    def _update(self, model: int, window: Window, update_weight: float, local: LocalUpdate) -> Tensors:
        x, y = self.x[window.first : window.stop], self.y[window.first : window.stop]
        return self.networks.update(model, self.store[model], x, y, window.weights, update_weight, local)

    def _tensors(self, model: int, exchange: int) -> Tensors:
        """What predicts: the parameters held, adapted to the client's own past where the policy does so."""
        local, past = self.policy.local, adaptation_window(self.policy.local, self.schedule, exchange)
        if past is None or not isinstance(local, Adapted):
            return self.store[model]
        x, y = self.x[past.first : past.stop], self.y[past.first : past.stop]
        return self.networks.adapted(model, self.store[model], x, y, local.adaptation_rate)


class LoopbackSimulation:
    """Run a policy client by client. Slow, and sure."""

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
    ) -> None:
        self.policy, self.fleet, self.stream, self.dictionary = policy, fleet, stream, dictionary
        self.seed, self.hindsight = seed, hindsight
        self.tensors = [
            {
                name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
                for name, tensor in model.tensors.items()
            }
            for model in dictionary.models
        ]
        require_fit(dictionary, stream)
        self.networks = [copy.deepcopy(model.module).to(dtype).eval() for model in dictionary.models]
        x = torch.from_numpy(np.ascontiguousarray(stream.x)).to(dtype)
        y = torch.from_numpy(np.ascontiguousarray(stream.y)).to(
            torch.int64 if dictionary.task == "classification" else dtype
        )
        local = LocalNetworks(self.networks, [model.trainable for model in dictionary.models], dictionary.task)
        self.clients = [
            LoopbackClient(
                policy,
                fleet.schedule,
                len(dictionary),
                local,
                x[index],
                y[index],
                policy.client.join(fleet.catalogue, fleet.budgets[index : index + 1], np.array([index])),
            )
            for index in range(stream.clients)
        ]
        self.server_state = policy.server.open(fleet.catalogue, fleet.bandwidth)

    def parameters(self) -> list[Tensors]:
        """A copy of the server's parameters and buffers as they are now."""
        return [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in self.tensors]

    def exchanges(self) -> Iterator[Exchange]:
        """All exchanges, one after the other."""
        with one_thread_a_worker():
            for exchange in range(self.fleet.schedule.exchanges):
                yield self._exchange(exchange)

    def _exchange(self, exchange: int) -> Exchange:
        policy, task = self.policy, self.dictionary.task
        span = self.fleet.schedule.span(exchange)
        draws = Draws(self.seed, exchange)
        requests = Requests.stack([client.request(draws) for client in self.clients])
        self.server_state, grants = policy.server.grant(self.server_state, requests, draws)
        plans = []
        for index, client in enumerate(self.clients):
            own = grants.rows(slice(index, index + 1))
            plans.append(client.receive(own, {int(k): self.tensors[k] for k in np.flatnonzero(own.sent[0])}))
        votes = [policy.expected_weights(client.state, self.server_state)[0] for client in self.clients]
        hindsight = self._hindsight(span) if self.hindsight else None

        outputs, losses = zip(
            *[client.predict(exchange, plan) for client, plan in zip(self.clients, plans, strict=True)], strict=True
        )
        own_outputs, own_losses = np.stack(outputs), np.stack(losses)
        observed = np.concatenate([policy.observed(plan) for plan in plans])
        names = [model.name for model in self.dictionary.models]
        require_finite_losses(own_losses, observed, names, span[0])
        reports = []
        totals: dict[int, Tensors] = {}
        window = tuning_window_of(policy.local, self.fleet.schedule, exchange)
        for index, (client, plan, loss) in enumerate(zip(self.clients, plans, losses, strict=True)):
            told = client.learn(plan, policy_losses(loss[None], policy.observed(plan), policy.loss_bound))
            reports.append(told)
            if window is not None and policy.local is not None:
                for model, delta in client.fine_tune(window, plan, told, policy.local).items():
                    if not is_finite(delta.values()):
                        raise not_finite_update(names[model], index, float(plan.update_weight[0, model]), window.stop)
                    total = totals.setdefault(model, {name: torch.zeros_like(part) for name, part in delta.items()})
                    for name, part in delta.items():
                        total[name] += part
        report = Reports.stack(reports)
        self.server_state, step = policy.server.absorb(self.server_state, report)
        for model, total in totals.items():
            for name, part in total.items():
                self.tensors[model][name] += float(step[model]) * part

        plan = Plan(*(np.concatenate([getattr(each, name) for each in plans]) for name in Plan.__dataclass_fields__))
        shared_outputs, shared_losses = hindsight if hindsight is not None else (own_outputs, own_losses)
        targets = self.stream.y[:, span[0] : span[1]]
        return Exchange(
            index=exchange,
            span=span,
            grants=grants,
            plan=plan,
            traffic=count_bytes(self.fleet.catalogue, grants, report, policy.local.copies if policy.local else 1),
            scores=client_scores(own_outputs, plan.prediction_weights, targets, task),
            losses=shared_losses,
            model_scores=model_scores(shared_outputs, targets, task),
            client_losses=np.where(observed[:, None], own_losses, shared_losses),
            expected_weights=np.stack(votes),
        )

    def _hindsight(self, span: tuple[int, int]) -> tuple[AnyArray, Floats]:
        """Outputs and losses of all models on all clients' samples: for measuring alone, no client sees them."""
        outputs, losses = [], []
        x = torch.cat([client.x[span[0] : span[1]] for client in self.clients])
        targets = torch.stack([client.y[span[0] : span[1]] for client in self.clients])
        for network, tensors in zip(self.networks, self.tensors, strict=True):
            with torch.no_grad():
                flat = functional_call(network, tensors, (x,))
            output = flat.unflatten(0, targets.shape)
            loss = sample_losses(flat, targets.flatten(), self.dictionary.task)
            outputs.append(output.numpy())
            losses.append(loss.reshape(targets.shape).double().numpy())
        return np.stack(outputs, axis=2), np.stack(losses, axis=2)
