"""The loopback: the same policy one client at a time, through messages, with plain local training.

It is the reference for the fused simulator, and it mimics a deployment: a client has only what was sent to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from ofms.compute.checks import is_finite, require_fit
from ofms.compute.evaluation import EvaluationBuilder
from ofms.compute.local import LocalNetworks, Tensors
from ofms.compute.momentum import Momentum
from ofms.compute.moving import move_models
from ofms.compute.protocol import Summed
from ofms.compute.samples import Samples
from ofms.compute.tasks import sample_losses
from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
from ofms.core.messages import Plan, Reports, Requests
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Flags, Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.speed import one_thread_per_worker
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import copies_held, is_control, tuning_window_of
from ofms.policies.protocol import Policy
from ofms.policies.session import expected_weights, open_sessions
from ofms.simulator.exchange import Exchange, flags_of, policy_losses
from ofms.simulator.loopback_client import LoopbackClient


class LoopbackSimulation:
    """Run a policy client by client: slow, but simple enough to serve as the reference."""

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
        require_fit(dictionary, stream)
        self.policy, self.fleet, self.stream, self.task = policy, fleet, stream, dictionary.task
        self.seed, self.hindsight, self.next_exchange = seed, hindsight, 0
        self.names = [model.name for model in dictionary.models]
        self.trainable = [model.trainable for model in dictionary.models]
        self.tensors = [
            {
                name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
                for name, tensor in model.tensors.items()
            }
            for model in dictionary.models
        ]
        self.frozen = self.parameters()
        modules = [copy.deepcopy(model.module).to(dtype).eval() for model in dictionary.models]
        networks = LocalNetworks(modules, self.trainable, dictionary.task)
        samples = Samples(stream, dtype, torch.device("cpu"))
        session, self.server = open_sessions(policy, fleet)
        self.networks = modules
        self.clients = [
            LoopbackClient(
                session,
                networks,
                samples.x[index],
                samples.y[index],
                session.join(fleet.catalogue, fleet.budgets[index : index + 1], np.array([index])),
            )
            for index in range(stream.clients)
        ]
        self.server_state, self.momentum = self.server.open(), Momentum(policy.momentum)

    def parameters(self) -> list[Tensors]:
        """A copy of the server's current parameters and buffers."""
        return [_copied(tensors) for tensors in self.tensors]

    def client_figures(self) -> dict[str, AnyArray]:
        """The processor time of each client."""
        return {"seconds": np.array([client.seconds for client in self.clients])}

    def exchanges(self) -> Iterator[Exchange]:
        """Run the remaining exchanges, one at a time."""
        with one_thread_per_worker():
            while self.next_exchange < self.fleet.schedule.exchanges:
                yield self._exchange(self.next_exchange)

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """All state that changes between exchanges, as arrays and values."""
        arrays, values = flatten(self.server_state, "server.")
        arrays |= self.momentum.to_arrays("momentum.")
        values["next_exchange"] = self.next_exchange
        for model, tensors in enumerate(self.tensors):
            arrays |= {f"model.{model}.{name}": tensor.numpy() for name, tensor in tensors.items()}
        for index, client in enumerate(self.clients):
            client_arrays, client_values = client.flatten(f"client.{index}.")
            arrays |= client_arrays
            values |= client_values
        return arrays, values

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        """Continue from flattened arrays and values."""
        self.server_state = unflatten(self.server_state, arrays, values, "server.")
        self.momentum.load_arrays(arrays, "momentum.")
        self.next_exchange = int(values["next_exchange"])
        for model, tensors in enumerate(self.tensors):
            self.tensors[model] = {name: torch.from_numpy(arrays[f"model.{model}.{name}"].copy()) for name in tensors}
        for index, client in enumerate(self.clients):
            client.unflatten(arrays, values, f"client.{index}.")

    def _exchange(self, exchange: int) -> Exchange:
        policy = self.policy
        span, draws = self.fleet.schedule.span(exchange), Draws(self.seed, exchange)
        requests = Requests.stack([client.request(draws) for client in self.clients])
        server, grants = self.server.grant(self.server_state, requests, draws)
        served = self.frozen if is_control(policy.local, exchange) else self.tensors
        plans = []
        for index, client in enumerate(self.clients):
            own = grants.rows(slice(index, index + 1))
            plans.append(client.receive(own, {int(k): served[k] for k in np.flatnonzero(own.sent[0])}))
        plan = Plan(*(np.concatenate([getattr(each, field.name) for each in plans]) for field in fields(Plan)))
        weights = np.concatenate([expected_weights(policy, client.state, server) for client in self.clients])

        observed = policy.observed(plan)
        own_results = self._evaluation(span, plan)
        found = [
            client.evaluate(exchange, np.flatnonzero(observed[index]).tolist())
            for index, client in enumerate(self.clients)
        ]
        for index, each in enumerate(found):
            for model, outputs, losses in each:
                own_results.add_one(index, model, outputs, losses)
        shared = self._in_hindsight(span, plan, served) if self.hindsight else own_results
        frozen_scores = self._frozen_scores(exchange, plan)

        learnt = policy_losses(own_results.losses, observed, policy.loss_bound)
        reports = Reports.stack(
            [
                client.learn(exchange, plans[index], learnt[index : index + 1], found[index])
                for index, client in enumerate(self.clients)
            ]
        )
        summed = self._updates(exchange, plans, reports)
        reports = reports.without_updates(flags_of(summed.left_out, plan.held.shape))
        left_out = summed.left_out + self._train_own_copies(exchange)
        models, first = (self.momentum, self.tensors, self.trainable), lambda model: _copied(self.frozen[model])
        before, server = server, move_models(self.server, server, reports, summed.updates, *models, first)
        self.server_state, self.next_exchange = server, exchange + 1
        scores, prediction_losses = own_results.client_scores()
        return Exchange(
            index=exchange,
            span=span,
            grants=grants,
            plan=plan,
            traffic=count_bytes(self.fleet.catalogue, grants, reports, copies_held(policy.local)),
            scores=scores,
            prediction_losses=prediction_losses if policy.incurs_prediction else None,
            frozen_scores=frozen_scores,
            losses=shared.losses,
            model_scores=shared.model_scores,
            client_losses=np.where(observed[:, None], own_results.losses, shared.losses),
            expected_weights=weights,
            quarantined=np.flatnonzero(server.quarantined & ~before.quarantined).tolist(),
            left_out=left_out,
        )

    def _updates(self, exchange: int, plans: list[Plan], reports: Reports) -> Summed:
        """The clients' weighted updates of each model that are finite, summed in the order of the clients."""
        totals: dict[int, Tensors] = {}
        left_out: list[tuple[int, int]] = []
        window = tuning_window_of(self.policy.local, self.fleet.schedule, exchange)
        if window is None or self.policy.local is None:
            return Summed(totals)
        for index, (client, plan) in enumerate(zip(self.clients, plans, strict=True)):
            weights = {
                model: float(plan.update_weight[0, model]) for model in np.flatnonzero(reports.updated[index]).tolist()
            }
            updates = client.fine_tune(weights, window, self.policy.local, plan.prediction_weights[0])
            for model, update in updates.items():
                if not is_finite(update.values()):
                    left_out.append((index, model))
                    continue
                total = totals.setdefault(model, {name: torch.zeros_like(part) for name, part in update.items()})
                for name, part in update.items():
                    total[name] += part
        return Summed(totals, left_out)

    def _train_own_copies(self, exchange: int) -> list[tuple[int, int]]:
        """Each client's fine-tuning of its own copy, which stays with the client; clients that it would break."""
        model, local = self.policy.own_model, self.policy.local
        window = tuning_window_of(local, self.fleet.schedule, exchange)
        left_out: list[tuple[int, int]] = []
        if model is None or window is None or local is None:
            return left_out
        for index, client in enumerate(self.clients):
            if model in client.store:
                update = client.fine_tune({model: 1.0}, window, local, np.zeros(len(self.names)))[model]
                moved = {name: client.store[model][name] + part for name, part in update.items()}
                if is_finite(moved.values()):
                    client.store[model] = client.store[model] | moved
                else:
                    left_out.append((index, model))
        return left_out

    def _evaluation(self, span: tuple[int, int], plan: Plan) -> EvaluationBuilder:
        targets = self.stream.y[:, span[0] : span[1]]
        return EvaluationBuilder(targets, plan.prediction_weights, self.task, self.policy.pooling)

    def _frozen_scores(self, exchange: int, plan: Plan) -> Floats | None:
        """Scores of the same choices without fine-tuning."""
        local = self.policy.local
        if not self.hindsight or local is None or local.rate == 0:
            return None
        builder = self._evaluation(self.fleet.schedule.span(exchange), plan)
        for index, client in enumerate(self.clients):
            predicting = np.flatnonzero(plan.prediction_weights[index]).tolist()
            for model, outputs, losses in client.evaluate_with(self.frozen, exchange, predicting):
                builder.add_one(index, model, outputs, losses)
        return builder.client_scores()[0]

    def _in_hindsight(self, span: tuple[int, int], plan: Plan, models: list[Tensors]) -> EvaluationBuilder:
        """Evaluate all models on all clients' samples: only for metrics, no client sees the results."""
        builder = self._evaluation(span, plan)
        x = torch.cat([client.x[span[0] : span[1]] for client in self.clients])
        targets = torch.stack([client.y[span[0] : span[1]] for client in self.clients])
        everybody: Flags = np.ones((len(self.clients), 1), dtype=np.bool_)
        for model, (network, tensors) in enumerate(zip(self.networks, models, strict=True)):
            with torch.no_grad():
                flat = functional_call(network, tensors, (x,))
            outputs = flat.unflatten(0, targets.shape).numpy()[:, :, None]
            losses = sample_losses(flat, targets.flatten(), self.task).reshape(targets.shape).double().numpy()
            builder.add([model], np.arange(len(self.clients)), everybody, outputs, losses[:, :, None])
        return builder


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}
