"""A running policy: versions held, the current exchange, and the messages between clients and server.

`ClientSession` and `ServerSession` wrap the two halves of a policy. They are stateless: states are immutable records,
passed in and returned, so they can be saved, sent and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ofms.core.draws import Draws, Purpose
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.typing import Flags, Floats, Integers
from ofms.core.uplink import Groups, draw_group, upload_needs
from ofms.policies.changes import ALL_MODELS, Adapting, Slots, change_between, padded
from ofms.policies.controls import better, clearly_worse, loss_by_tuning
from ofms.policies.fleet import Fleet, require_budgets
from ofms.policies.local_updates import copies_held, is_control, last_control, tuning_window_of
from ofms.policies.observations import Observations, Recent, Samples
from ofms.policies.protocol import ClientPolicy, Policy, SummedUpdates
from ofms.policies.rules import require_held, require_plan, require_probabilities, require_requests, require_steps


@dataclass(frozen=True, eq=False)
class ClientState:
    """[N] client numbers, [N, K] versions held (-1: not held), the current exchange, the last samples if the policy
    remembers them, and the policy's own state, of the models in use alone."""

    client: Integers
    held_version: Integers
    exchange: int
    recent: Recent
    policy: Any


@dataclass(frozen=True, eq=False)
class ServerState:
    """[K] versions of the models, the number of clients in the exchange, the policy's own state, and [K] the models
    that diverged."""

    version: Integers
    clients: int
    policy: Any
    quarantined: Flags


@dataclass(frozen=True, eq=False)
class ClientSession:
    """The client half of a policy, with its messages; `slots` are the models in use, all if None."""

    policy: ClientPolicy
    schedule: Schedule
    slots: Slots = ALL_MODELS

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> ClientState:
        """The initial state of clients."""
        used = self.slots.catalogue(catalogue)
        require_budgets(used, budgets)
        shape = (clients.size, len(catalogue))
        nothing, recent = np.full(shape, -1), Recent.none(*shape)
        return ClientState(clients, nothing, 0, recent, self.policy.client.start(used, budgets))

    def adapt(
        self, state: ClientState, before: ClientSession, catalogue: Catalogue, budgets: Integers, *, anew: bool = False
    ) -> ClientState:
        """The state under this session, of clients with the `state` of the session `before`; `anew` if they forget."""
        half, held = self.policy.client, padded(state.held_version, len(catalogue), 1, -1)
        change = change_between(before.slots.within(state.held_version.shape[1]), self.slots, catalogue, budgets)
        fresh = self.join(catalogue, budgets, state.client)
        if anew:
            return replace(fresh, held_version=held, exchange=state.exchange)
        own = half.adapt(state.policy, change) if isinstance(half, Adapting) else fresh.policy
        recent = replace(state.recent, outputs=padded(state.recent.outputs, len(catalogue), 2, np.nan))
        return replace(state, held_version=held, recent=recent, policy=own)

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        """Request the models to hold until the next exchange."""
        own, wanted = self.policy.client.select(state.policy, draws.of(state.client))
        nothing = np.zeros(state.held_version.shape, dtype=np.bool_)
        wanted = nothing if wanted is None else self.slots.widen(wanted)
        state = replace(state, policy=own, exchange=draws.exchange)
        requests = Requests(draws.exchange, state.client, wanted, state.held_version)
        require_requests(self.policy.name, requests)
        return state, requests

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        """Hold the granted models, and set the weights with which they predict and are fine-tuned."""
        held_version = np.where(grants.held, grants.version, -1)
        if tuning_window_of(self.policy.local, self.schedule, grants.exchange) is None:
            grants = replace(grants, uploads=np.zeros_like(grants.uploads))
        own, plan = self.policy.client.plan(state.policy, self.slots.narrow_grants(grants))
        plan = self.slots.widen_plan(plan)
        require_plan(self.policy.name, grants, plan)
        if grants.quarantined is not None:
            plan = replace(plan, update_weight=np.where(grants.quarantined, 0.0, plan.update_weight))
        return replace(state, policy=own, held_version=held_version), plan

    def late(self, state: ClientState, plan: Plan) -> Integers | None:
        """[N, K] the number of past samples on which observed models are to be evaluated; None if it remembers none."""
        if not self.policy.remembers:
            return None
        late = state.recent.unseen()
        if is_control(self.policy.local, state.exchange):
            late = np.full_like(late, state.recent.targets.shape[1])
        return np.where(self.policy.observed(plan), late, 0)

    def compare(self, state: ClientState, plan: Plan, samples: Samples) -> Floats | None:
        """[N, K] by how much fine-tuning made predictions worse; None except in a control exchange.

        `samples` have outputs of first versions on past samples, and are not remembered yet.
        """
        if not is_control(self.policy.local, state.exchange):
            return None
        exchanges = last_control(self.policy.local, state.exchange), state.exchange
        return loss_by_tuning(state.recent, samples, plan.prediction_weights, exchanges, self.policy.remembers)

    def remember(self, state: ClientState, samples: Samples) -> ClientState:
        """Add labelled samples, and outputs on past ones, to those that the policy remembers."""
        return replace(state, recent=state.recent.add(samples, self.policy.remembers))

    def learn(
        self,
        state: ClientState,
        plan: Plan,
        losses: Floats,
        samples: Samples | None = None,
        compared: Floats | None = None,
    ) -> tuple[ClientState, Reports]:
        """Learn from the [N, K] selection losses of an exchange and the remembered samples, and report on it.

        `samples` are those of the exchange that are not remembered yet, and outputs on past ones; `compared` is what
        `compare` returned if they are remembered already.
        """
        if samples is not None:
            compared = self.compare(state, plan, samples)
            state = self.remember(state, samples)
        seen = Observations(self.slots.narrow(losses), self.slots.narrow_recent(state.recent))
        own = self.policy.client.learn(state.policy, self.slots.narrow_plan(plan), seen)
        reported = np.where(plan.held, losses, np.nan) if self.policy.reports_losses else None
        if is_control(self.policy.local, state.exchange):
            nothing = np.zeros(plan.held.shape)
            reported = np.where(plan.held, nothing if compared is None else compared, np.nan)
        elif self.policy.reports_use:
            reported = state.recent.losses_by_use(plan.update_weight)
        reports = Reports(state.exchange, state.client, reported, plan.update_weight > 0)
        return replace(state, policy=own), reports


@dataclass(frozen=True, eq=False)
class ServerSession:
    """The server half of a policy, with its messages, for a fleet; `slots` are the models in use, all if None."""

    policy: Policy
    fleet: Fleet
    slots: Slots = ALL_MODELS

    def open(self) -> ServerState:
        """The state before the first exchange."""
        used, nothing = self.slots.catalogue(self.fleet.catalogue), np.zeros(len(self.fleet.catalogue), dtype=np.bool_)
        return ServerState(self.fleet.catalogue.version, 0, self.policy.server.start(used), nothing)

    def adapt(self, state: ServerState, before: ServerSession, *, anew: bool = False) -> ServerState:
        """The state under this session, from the `state` of the session `before`; `anew` if the policy forgets."""
        half, catalogue = self.policy.server, self.fleet.catalogue
        own = half.start(self.slots.catalogue(catalogue))
        if not anew and isinstance(half, Adapting):
            earlier = before.slots.within(len(before.fleet.catalogue))
            nobody = np.zeros(0, dtype=np.int64)
            own = half.adapt(state.policy, change_between(earlier, self.slots, catalogue, nobody))
        version, quarantined = (padded(each, len(catalogue), 0, 0) for each in (state.version, state.quarantined))
        return replace(state, version=version, policy=own, quarantined=quarantined)

    def grant(self, state: ServerState, requests: Requests, draws: Draws) -> tuple[ServerState, Grants]:
        """Decide which models each client holds; if clients fine-tune, draw the group that uploads."""
        wanted = self.slots.narrow(requests.wanted)
        own, held, prediction_weights = self.policy.server.grant(state.policy, wanted, draws)
        held = self.slots.widen(held)
        prediction_weights = None if prediction_weights is None else self.slots.widen(prediction_weights)
        budgets, copies = self.fleet.budgets[requests.client], copies_held(self.policy.local)
        require_held(self.policy.name, requests, held, copies * self.fleet.catalogue.storage, budgets)
        groups = self._draw_group(held, draws)
        version = self.fleet.catalogue.version if is_control(self.policy.local, requests.exchange) else state.version
        grants = Grants(
            exchange=requests.exchange,
            client=requests.client,
            held=held,
            sent=held & (requests.holding != version),
            prediction_weights=prediction_weights,
            uploads=np.zeros(requests.client.size, dtype=np.bool_) if groups is None else groups.uploads,
            groups=1 if groups is None else groups.count,
            version=version,
            quarantined=state.quarantined if state.quarantined.any() else None,
        )
        return replace(state, clients=requests.client.size, policy=own), grants

    def absorb(
        self, state: ServerState, reports: Reports, sizes: tuple[Floats, Floats, Floats] | None = None
    ) -> tuple[ServerState, Floats]:
        """Learn from the reports; return [K] steps along the summed updates. Changed models get new versions.

        `sizes` are those of `SummedUpdates`: products, norms and parameters; zeros if left out. Models whose updates
        are not finite, or their sum, are quarantined, and not moved.
        """
        nothing, restored = np.zeros(len(self.fleet.catalogue)), self.restored(state, reports)
        products, norms, parameters = sizes or (nothing, nothing, nothing)
        quarantined = state.quarantined | reports.lost() | ~np.isfinite(products + norms)
        if quarantined.any():
            reports = replace(reports, updated=reports.updated & ~quarantined)
            products, norms = np.where(quarantined, 0.0, products), np.where(quarantined, 0.0, norms)
        improved = np.zeros_like(restored)
        if reports.losses is not None and is_control(self.policy.local, reports.exchange):
            improved = better(reports.losses)
        summed = SummedUpdates(state.clients, products, norms, parameters, restored, improved)
        own, step = self.policy.server.learn(state.policy, self.slots.narrow_reports(reports), self._narrowed(summed))
        version = state.version + (reports.updated.any(axis=0) | restored)
        step = np.asarray(step, np.float64)
        steps = np.broadcast_to(self.slots.widen(step) if step.ndim else step, version.shape)
        require_steps(self.policy.name, reports.exchange, steps)
        return replace(state, version=version, policy=own, quarantined=quarantined), steps

    def unmoved(self, before: ServerState, state: ServerState, models: Sequence[int]) -> ServerState:
        """The state after `absorb` if steps would have made models not finite: they keep their versions."""
        if not models:
            return state
        kept = np.isin(np.arange(len(self.fleet.catalogue)), models)
        version = np.where(kept, before.version, state.version)
        return replace(state, version=version, quarantined=state.quarantined | kept)

    def restored(self, state: ServerState, reports: Reports) -> Flags:
        """[K] the models that go back to their first versions.

        Either fine-tuning made their users' predictions worse, or all updates of the exchange are not finite: then
        neither is the version that they update.
        """
        tuned: Flags = state.version != self.fleet.catalogue.version
        lost = tuned & reports.lost() & ~state.quarantined
        if reports.losses is None or not is_control(self.policy.local, reports.exchange):
            return lost
        return lost | (tuned & clearly_worse(reports.losses))

    def _narrowed(self, summed: SummedUpdates) -> SummedUpdates:
        """Of the models in use."""
        if self.slots.places is None:
            return summed
        by_model = (summed.products, summed.norms, summed.parameters, summed.restored, summed.improved)
        products, norms, parameters, restored, improved = map(self.slots.narrow, by_model)
        return SummedUpdates(summed.clients, products, norms, parameters, restored, improved)

    def _draw_group(self, held: Flags, draws: Draws) -> Groups | None:
        """alg:6, steps 12 to 14; None if the policy does not fine-tune."""
        if self.policy.local is None:
            return None
        if self.policy.uploaded is not None:
            held = held & np.isin(np.arange(held.shape[1]), self.policy.uploaded)
        needs, bandwidth = upload_needs(held, self.fleet.catalogue.upload), self.fleet.bandwidth
        if self.policy.upload_groups is not None:
            bandwidth = -(-needs.size // self.policy.upload_groups) * int(needs.max())
        return draw_group(needs, bandwidth, draws.single(Purpose.GROUP))


def open_sessions(policy: Policy, fleet: Fleet) -> tuple[ClientSession, ServerSession]:
    """Both sessions of a policy for a fleet."""
    return ClientSession(policy, fleet.schedule), ServerSession(policy, fleet)


def expected_weights(policy: Policy, client: ClientState, server: ServerState, slots: Slots = ALL_MODELS) -> Floats:
    """[N, K] expected prediction weights, for measuring regret."""
    weights = slots.widen(policy.expected_weights(client.policy, server.policy))
    require_probabilities(policy.name, client.exchange, client.client, weights)
    return np.ascontiguousarray(np.broadcast_to(weights, client.held_version.shape))
