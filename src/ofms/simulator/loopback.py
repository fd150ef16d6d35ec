"""The loopback: the same policy one client at a time, through messages, with plain local training.

It is the reference for the fused simulator, and it mimics a deployment: a client has only what was sent to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from ofms.compute.checks import require_fit
from ofms.compute.evaluation import EvaluationBuilder
from ofms.compute.flattening import combine_tensors
from ofms.compute.local import LocalNetworks, Tensors
from ofms.compute.momentum import Momentum
from ofms.compute.moving import move_models
from ofms.compute.protocol import Summed
from ofms.compute.samples import Samples
from ofms.compute.updates import norm_of
from ofms.core.attacks import Attack
from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
from ofms.core.messages import Plan, Reports, Requests
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.speed import one_thread_per_worker
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import copies_held, is_control, tuning_window_of
from ofms.policies.protocol import Policy
from ofms.policies.session import expected_weights, open_sessions
from ofms.simulator.cohorts import Cohorts
from ofms.simulator.combining import Combination, combination_for
from ofms.simulator.earlier_versions import EarlierVersions
from ofms.simulator.exchange import Exchange, flags_of, policy_losses
from ofms.simulator.loopback_client import LoopbackClient
from ofms.simulator.loopback_work import evaluate_all, train_own_copies, updates_of
from ofms.simulator.phases import Phases


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
        phases: Phases | None = None,
        attack: Attack | None = None,
    ) -> None:
        require_fit(dictionary, stream)
        self.attack = attack
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
        self._earlier = EarlierVersions(phases, self.frozen)
        modules = [copy.deepcopy(model.module).to(dtype).eval() for model in dictionary.models]
        networks = LocalNetworks(modules, self.trainable, dictionary.task)
        samples = Samples(stream, dtype, torch.device("cpu"))
        session, self.server = open_sessions(policy, fleet)
        everyone = np.arange(stream.clients)
        self.phases, self.setup = phases, None if phases is None else phases.first
        if phases is not None:
            session, self.server, everyone = phases.first.client, phases.first.server, np.array(phases.first.members)
        self.fleet_rows = Cohorts(session, (everyone,), stream.clients)
        self.networks = modules
        # Clients that are not in the fleet yet get their own state when they join.
        budgets = np.where(np.isin(np.arange(stream.clients), everyone), fleet.budgets, fleet.budgets[everyone[0]])
        self.clients = [
            LoopbackClient(
                session,
                networks,
                samples.x[index],
                samples.y[index],
                session.join(fleet.catalogue, budgets[index : index + 1], np.array([index])),
            )
            for index in range(stream.clients)
        ]
        self.server_state, self.momentum = self.server.open(), Momentum(policy.momentum, policy.square_momentum)

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

    @property
    def present(self) -> list[tuple[int, LoopbackClient]]:
        """The clients in the fleet, with their numbers."""
        return [(index, self.clients[index]) for index in self.fleet_rows.present.tolist()]

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """All state that changes between exchanges, as arrays and values."""
        arrays, values = flatten(self.server_state, "server.")
        arrays |= self.momentum.to_arrays("momentum.") | self._earlier.to_arrays("earlier.")
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
        self.next_exchange = int(values["next_exchange"])
        for exchange in range(self.next_exchange):
            self._begin(exchange)
        self.server_state = unflatten(self.server_state, arrays, values, "server.")
        self.momentum.load_arrays(arrays, "momentum.")
        self._earlier.load_arrays(arrays, "earlier.")
        for model, tensors in enumerate(self.tensors):
            self.tensors[model] = {name: torch.from_numpy(arrays[f"model.{model}.{name}"].copy()) for name in tensors}
        for index, client in enumerate(self.clients):
            client.unflatten(arrays, values, f"client.{index}.")

    def _begin(self, exchange: int) -> None:
        """Apply the events of an exchange, client by client."""
        self._earlier.keep(exchange, lambda model: _copied(self.tensors[model]))
        for event, before, after in self.phases.at(exchange) if self.phases is not None else ():
            renewed = after.renewed_since(before)
            session, all_adapt = after.client, after.concerns_clients(before, event)
            for index in after.members:
                client, budgets = self.clients[index], after.budgets[index : index + 1]
                if index in event.join:
                    client.state = session.join(after.catalogue, budgets, np.array([index]))
                    client.first_round = after.schedule.span(exchange)[0]
                elif all_adapt or index in event.budget:
                    client.state = session.adapt(
                        client.state, client.session, after.catalogue, budgets, anew=event.anew, renewed=renewed
                    )
                client.session = session
            self.server_state = after.server.adapt(self.server_state, before.server, anew=event.anew, renewed=renewed)
            self.setup, self.policy, self.fleet, self.server = after, after.built, after.fleet, after.server
            self.fleet_rows = Cohorts(session, (np.array(after.members),), len(self.clients))
            self.momentum.change(self.policy.momentum, self.policy.square_momentum)
            self.momentum.forget(after.places if event.anew else set(before.places) - set(after.places) | set(renewed))
            for model, tensors in self._earlier.of(event, after):
                self.tensors[model] = _copied(tensors)

    def _exchange(self, exchange: int) -> Exchange:
        self._begin(exchange)
        policy, rows = self.policy, self.fleet_rows
        span, draws = self.fleet.schedule.span(exchange), Draws(self.seed, exchange)
        requests = Requests.stack([client.request(draws) for _, client in self.present])
        server, grants = self.server.grant(self.server_state, requests, draws)
        served = self.frozen if is_control(policy.local, exchange) else self.tensors
        plans = []
        for place, (_, client) in enumerate(self.present):
            own = grants.rows(slice(place, place + 1))
            plans.append(client.receive(own, {int(k): served[k] for k in np.flatnonzero(own.sent[0])}))
        plan, slots = Plan.stack(plans).for_clients(rows.spread), rows.session.slots
        weights = rows.spread(
            np.concatenate([expected_weights(policy, client.state, server, slots) for _, client in self.present])
        )

        observed = policy.observed(plan)
        own_results = self._evaluation(span, plan)
        found = [client.evaluate(exchange, np.flatnonzero(observed[index]).tolist()) for index, client in self.present]
        for (index, _), each in zip(self.present, found, strict=True):
            for model, outputs, losses in each:
                own_results.add_one(index, model, outputs, losses)
        shared = (
            evaluate_all(self._evaluation(span, plan), self.clients, self.networks, served, span)
            if self.hindsight
            else own_results
        )
        frozen_scores = self._frozen_scores(exchange, plan)

        learnt = policy_losses(own_results.losses, observed, policy.loss_bound)
        reports = Reports.stack(
            [
                client.learn(exchange, plans[place], learnt[index : index + 1], found[place])
                for place, (index, client) in enumerate(self.present)
            ]
        )
        window = tuning_window_of(policy.local, self.fleet.schedule, exchange)
        summed, own_left_out = Summed({}), list[tuple[int, int]]()
        if window is not None and policy.local is not None:
            made = combination_for(
                policy.aggregation, self.momentum.norms, self.attack, len(self.clients), grants, draws
            )
            combine = None if made is None else partial(self._combined, made)
            summed = updates_of(self.present, plans, reports, window, policy.local, combine)
            reports = reports if made is None else made.scaled(reports)
            own_left_out = train_own_copies(self.present, policy.own_model, window, policy.local, len(self.names))
        reports = reports.without_updates(flags_of(summed.left_out, plan.held.shape)[rows.present])
        models, first = (self.momentum, self.tensors, self.trainable), lambda model: _copied(self.frozen[model])
        before, server = server, move_models(self.server, server, reports, summed.updates, *models, first)
        self.server_state, self.next_exchange = server, exchange + 1
        scores, prediction_losses = own_results.client_scores()
        return Exchange(
            index=exchange,
            span=span,
            grants=rows.whole_grants(grants),
            plan=plan,
            traffic=count_bytes(
                self.fleet.catalogue, rows.whole_grants(grants), rows.whole_reports(reports), copies_held(policy.local)
            ),
            scores=scores,
            prediction_losses=prediction_losses if policy.incurs_prediction else None,
            frozen_scores=frozen_scores,
            losses=shared.losses,
            model_scores=shared.model_scores,
            client_losses=np.where(observed[:, None], own_results.losses, shared.losses),
            expected_weights=weights,
            quarantined=np.flatnonzero(server.quarantined & ~before.quarantined).tolist(),
            left_out=summed.left_out + own_left_out,
            present=None if self.phases is None or self.setup is None else self.phases.present(self.setup),
        )

    def _combined(self, made: Combination, model: int, updates: Mapping[int, Tensors]) -> Tensors:
        """One update of a model of its updates by client."""
        norm, clients = norm_of(self.tensors[model][name] for name in self.trainable[model]), np.array(list(updates))
        return combine_tensors(list(updates.values()), lambda rows: made(model, clients, rows, norm))

    def _evaluation(self, span: tuple[int, int], plan: Plan) -> EvaluationBuilder:
        targets = self.stream.y[:, span[0] : span[1]]
        return EvaluationBuilder(targets, plan.prediction_weights, self.task, self.policy.pooling, offset=plan.offset)

    def _frozen_scores(self, exchange: int, plan: Plan) -> Floats | None:
        """Scores of the same choices without fine-tuning."""
        local = self.policy.local
        if not self.hindsight or local is None or local.rate == 0:
            return None
        builder = self._evaluation(self.fleet.schedule.span(exchange), plan)
        for index, client in self.present:
            predicting = np.flatnonzero(plan.prediction_weights[index]).tolist()
            for model, outputs, losses in client.evaluate_with(self.frozen, exchange, predicting):
                builder.add_one(index, model, outputs, losses)
        return builder.client_scores()[0]


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}
