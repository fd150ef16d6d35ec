"""The fast simulator: all clients at once, one weighted backward pass per model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from ofms.compute.checks import is_finite
from ofms.compute.group import ALONE, Group, gather_rows
from ofms.compute.momentum import Momentum, may_overflow
from ofms.compute.own_copies import OwnCopies
from ofms.compute.protocol import Adaptation, Compute, Pending, Summed, Tensors
from ofms.compute.shards import Block
from ofms.core.attacks import Attack
from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
from ofms.core.messages import Catalogue, Plan, Reports
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import Adapted, adaptation_window_of, copies_held, is_control, tuning_window_of
from ofms.policies.observations import Samples
from ofms.policies.protocol import Policy
from ofms.policies.session import ServerState, open_sessions
from ofms.simulator import own_samples
from ofms.simulator.client_states import flatten_clients, unflatten_clients
from ofms.simulator.cohorts import Cohorts
from ofms.simulator.combining import combination_for
from ofms.simulator.earlier_versions import EarlierVersions
from ofms.simulator.exchange import Exchange, flags_of, policy_losses
from ofms.simulator.phases import Phases, moved
from ofms.simulator.ranks import Ranks
from ofms.storage.tensors import tensors_of


class FusedSimulation:
    """Run a policy for N clients at once.

    Parameters
    ----------
    compute
        The models and the clients' samples.
    targets
        [N, T] the samples' targets, of the clients in `block`.
    frozen
        The same with the first versions of models: for control exchanges, and to score the same choices without
        fine-tuning. None if the policy has no control exchanges and `hindsight` is False.
    own
        The clients' own copies of `Policy.own_model`; None if they have none, or do not fine-tune them.
    hindsight
        Whether to evaluate all models on all samples, which regret needs.
    phases
        The fleet before and after each event, if there are events; `policy` and `fleet` are those of the first.
    block
        The shards of this process, with which the others were made; by default those of `compute` have all clients.
    group
        The processes of the run.
    attack
        What hostile clients upload.
    """

    def __init__(
        self,
        policy: Policy,
        fleet: Fleet,
        compute: Compute,
        targets: AnyArray,
        *,
        frozen: Compute | None = None,
        own: OwnCopies | None = None,
        seed: int,
        hindsight: bool = True,
        phases: Phases | None = None,
        block: Block | None = None,
        group: Group = ALONE,
        attack: Attack | None = None,
    ) -> None:
        self.attack = attack
        self.policy, self.fleet, self.compute, self.frozen = policy, fleet, compute, frozen
        self.targets, self.own, self.seed, self.hindsight = targets, own, seed, hindsight
        self.ranks = Ranks(group, block or Block.of(targets.shape[0], compute.shards))
        numbered, self._own = self.ranks.block.clients, slice(*self.ranks.block.clients)
        self.phases, self.first_rounds = phases, None if phases is None else phases.first_rounds[self._own]
        session, self.server = open_sessions(policy, fleet)
        everyone, self.setup = np.arange(fleet.budgets.size), None if phases is None else phases.first
        self.clients = Cohorts.of(session, (everyone,), numbered, len(fleet.catalogue))
        if phases is not None:
            self.clients, self.server = phases.cohorts(phases.first, numbered), phases.first.server
        numbers = [rows + self.clients.first for rows in self.clients.members]
        self.client_state = tuple(
            self.clients.session.join(fleet.catalogue, fleet.budgets[each], each) for each in numbers
        )
        self.server_state = self.server.open()
        self.momentum = Momentum(policy.momentum, policy.square_momentum)
        # Models that diverge, or that fine-tuning makes worse, go back to them.
        tuned = policy.local is not None and policy.local.rate > 0
        self._first_versions = self.parameters() if tuned or phases is not None else []
        self._earlier = EarlierVersions(phases, self._first_versions)
        self.next_exchange = 0

    def parameters(self) -> list[Tensors]:
        """A copy of the dictionary's current parameters and buffers."""
        return [self.compute.state(model) for model in range(len(self.fleet.catalogue))]

    def client_figures(self) -> dict[str, AnyArray]:
        return {}

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """All state that changes between exchanges, as arrays and values."""
        arrays, values = flatten_clients(self.clients, self.client_state, *self._checkpointed())
        server_arrays, server_values = flatten(self.server_state, "server.")
        arrays |= server_arrays
        values |= server_values | {"next_exchange": self.next_exchange}
        for model, tensors in enumerate(self.parameters()):
            arrays |= {f"model.{model}.{name}": tensor.numpy() for name, tensor in tensors.items()}
        arrays |= self.momentum.to_arrays("momentum.") | self._earlier.to_arrays("earlier.")
        if self.own is not None:
            copies = {f"own.{name}": tensor.numpy() for name, tensor in self.own.state().items()}
            arrays |= gather_rows(self.ranks.group, copies)
        return arrays, values

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        """Continue from flattened arrays and values."""
        for exchange in range(int(values["next_exchange"])):
            self._begin(exchange)
        self.client_state = unflatten_clients(self.clients, self.client_state, *self._checkpointed(), (arrays, values))
        self.server_state = unflatten(self.server_state, arrays, values, "server.")
        for model in range(len(self.fleet.catalogue)):
            self.compute.load_state(model, tensors_of(arrays, f"model.{model}."))
        self.momentum.load_arrays(arrays, "momentum.")
        self._earlier.load_arrays(arrays, "earlier.")
        if self.own is not None:
            copies = {name: tensor[self._own] for name, tensor in tensors_of(arrays, "own.").items()}
            self.own.load_state(copies)
        self.next_exchange = int(values["next_exchange"])

    def exchanges(self) -> Iterator[Exchange]:
        """Run the remaining exchanges, one at a time."""
        with self.compute, self.frozen or nullcontext():
            while self.next_exchange < self.fleet.schedule.exchanges:
                yield self._exchange(self.next_exchange)

    def _checkpointed(self) -> tuple[dict[int, str], Group, Catalogue, Integers]:
        """The paths of the cohorts in a checkpoint, by their first clients, and what new states depend on."""
        catalogue, group = self.fleet.catalogue, self.ranks.group
        if self.phases is None or self.setup is None:
            return {0: "client."}, group, catalogue, self.fleet.budgets
        everyone = self.phases.cohorts(self.setup, (0, self.phases.total))
        paths = {int(numbers[0]): f"client.{numbers[0]}." for numbers in everyone.numbers}
        return paths, group, self.setup.catalogue, self.setup.budgets

    def _begin(self, exchange: int) -> None:
        """Apply the events of an exchange."""
        if self.phases is None:
            return
        self._earlier.keep(exchange, self.compute.state)
        for event, before, after in self.phases.at(exchange):
            cohorts = self.phases.cohorts(after, self.ranks.block.clients)
            self.client_state = moved(event, (before, self.clients, self.client_state), after, cohorts)
            renewed = after.renewed_since(before)
            self.server_state = after.server.adapt(self.server_state, before.server, anew=event.anew, renewed=renewed)
            self.setup, self.clients, self.server = after, cohorts, after.server
            self.policy, self.fleet = after.built, after.fleet
            self.momentum.change(self.policy.momentum, self.policy.square_momentum)
            self.momentum.forget(after.places if event.anew else set(before.places) - set(after.places) | set(renewed))
            for model, tensors in self._earlier.of(event, after):
                self.compute.load_state(model, tensors)

    def _exchange(self, exchange: int) -> Exchange:
        self._begin(exchange)
        policy, local, schedule = self.policy, self.policy.local, self.fleet.schedule
        span, draws = schedule.span(exchange), Draws(self.seed, exchange)
        clients, requests = self.clients.request(self.client_state, draws)
        server, grants = self.ranks.grant(self.server, self.server_state, requests, draws)
        clients, plan = self.clients.plan(clients, grants)
        grants = self.clients.whole_grants(grants)
        weights = self.clients.expected_weights(policy, clients, server)
        if self.own is not None:
            self.own.start(grants.sent[:, self.own.model])

        compute = self.compute if self.frozen is None or not is_control(local, exchange) else self.frozen
        # Update weights are part of the plan, so fine-tuning need not wait for the losses.
        evaluation = own_samples.evaluate(
            compute,
            self.first_rounds,
            span,
            plan.held,
            plan.prediction_weights,
            hindsight=self.hindsight,
            adaptation=self._adaptation(exchange),
            pooling=policy.pooling,
            late=self.clients.late(clients, plan),
            own=self.own,
            offset=plan.offset,
        )
        window = tuning_window_of(local, schedule, exchange)
        update, combine = None, None
        if window is not None and local is not None:
            usual, clients_in_all = self.momentum.norms, plan.held.shape[0]
            combine = combination_for(policy.aggregation, usual, self.attack, clients_in_all, grants, draws)
            given = (self.compute, self.first_rounds, window, plan, local)
            update = own_samples.combine(*given, combine) if combine is not None else self._summed(*given)

        result = evaluation.result()
        losses = policy_losses(result.client_losses, policy.observed(plan), policy.loss_bound)
        samples = None
        if result.outputs is not None:
            samples = Samples.of(exchange, result.outputs, self.targets[:, span[0] : span[1]])
        clients, reports = self.clients.learn(clients, plan, losses, samples)
        summed = update.result() if update else None
        reports = reports if combine is None else combine.scaled(reports)
        left_out = [] if summed is None else list(summed.left_out)
        reports = reports.without_updates(flags_of(left_out, plan.held.shape)[self.clients.present])
        frozen_scores = self._frozen_scores(exchange, plan, result.scores)
        before, server = server, self._learn(server, self.ranks.reports(reports), summed)
        if self.own is not None and window is not None and local is not None:
            held = plan.held[:, self.own.model]
            left_out += own_samples.train(self.own, self.first_rounds, window, held, local)
        self.client_state, self.server_state, self.next_exchange = clients, server, exchange + 1
        return Exchange(
            index=exchange,
            span=span,
            grants=grants,
            plan=plan,
            traffic=count_bytes(self.fleet.catalogue, grants, self.clients.whole_reports(reports), copies_held(local)),
            scores=result.scores,
            frozen_scores=frozen_scores,
            losses=result.losses,
            model_scores=result.model_scores,
            client_losses=result.client_losses,
            prediction_losses=result.prediction_losses if policy.incurs_prediction else None,
            expected_weights=weights,
            quarantined=np.flatnonzero(server.quarantined & ~before.quarantined).tolist(),
            left_out=self.ranks.pairs(left_out),
            present=None if self.phases is None or self.setup is None else self.phases.present(self.setup, self._own),
        )

    def _summed(self, *given: Any) -> Pending[Summed]:
        """The clients' updates, summed over all processes."""
        pending = own_samples.update(self.ranks.block.numbers, *given)
        return Pending(lambda: self.ranks.total(pending.result(), self.compute.like))

    def _learn(self, before: ServerState, reports: Reports, summed: Summed | None) -> ServerState:
        """Learn from the reports, and move the models along their updates."""
        directions = {} if summed is None else self.momentum.add(summed.updates)
        sizes = None if summed is None else self.compute.sizes(summed.updates, directions)
        restored = np.flatnonzero(self.server.restored(before, reports)).tolist()
        server, step = self.server.absorb(before, reports, sizes)
        directions = {model: each for model, each in directions.items() if not server.quarantined[model]}
        kept = {}
        if sizes is not None:
            kept = {model: self.compute.state(model) for model in may_overflow(sizes, step, directions)}
            self.compute.apply(directions, step)
        diverged = [model for model in kept if not is_finite(self.compute.state(model).values())]
        for model in diverged:
            self.compute.load_state(model, kept[model])
        for model in restored:
            self.compute.load_state(model, self._first_versions[model])
        server = self.server.unmoved(before, server, diverged)
        self.momentum.forget([*restored, *np.flatnonzero(server.quarantined).tolist()])
        return server

    def _frozen_scores(self, exchange: int, plan: Plan, scores: Floats) -> Floats | None:
        """Scores of the same choices without fine-tuning."""
        local, span = self.policy.local, self.fleet.schedule.span(exchange)
        if self.frozen is None or local is None or not self.hindsight:
            return None
        if span[0] < local.warm_up:
            return scores
        weights = plan.prediction_weights
        frozen = own_samples.evaluate(
            self.frozen,
            self.first_rounds,
            span,
            weights > 0,
            weights,
            hindsight=False,
            adaptation=self._adaptation(exchange),
            pooling=self.policy.pooling,
            offset=plan.offset,
        )
        return frozen.result().scores

    def _adaptation(self, exchange: int) -> Adaptation | None:
        local, past = self.policy.local, adaptation_window_of(self.policy.local, self.fleet.schedule, exchange)
        return Adaptation(past, local.adaptation_rate) if past is not None and isinstance(local, Adapted) else None
