"""A running policy: versions held, the current exchange, and the messages between clients and server.

`ClientSession` and `ServerSession` wrap the two halves of a policy. They are stateless: states are immutable records,
passed in and returned, so they can be saved, sent and compared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.typing import Floats, Integers
from ofms.policies import offsets as offsets_of
from ofms.policies.changes import ALL_MODELS, Adapting, Slots, change_between, padded
from ofms.policies.controls import loss_by_tuning
from ofms.policies.fleet import Fleet, require_budgets
from ofms.policies.local_updates import is_control, last_control, tuning_window_of
from ofms.policies.observations import Observations, Recent, Samples
from ofms.policies.offsets import Offsets
from ofms.policies.protocol import ClientPolicy, Policy
from ofms.policies.rules import require_parts, require_plan, require_probabilities, require_requests
from ofms.policies.server_session import ServerSession, ServerState

__all__ = ["ClientSession", "ClientState", "ServerSession", "ServerState", "expected_weights", "open_sessions"]


@dataclass(frozen=True, eq=False)
class ClientState:
    """[N] client numbers, [N, K] versions held (-1: not held), the current exchange, the last samples if the policy
    remembers them, the policy's own state, of the models in use alone, and the offsets of predictions."""

    client: Integers
    held_version: Integers
    exchange: int
    recent: Recent
    policy: Any
    offsets: Offsets


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
        offsets = Offsets.none(clients.size, len(self.policy.offset_memories))
        return ClientState(clients, nothing, 0, recent, self.policy.client.start(used, budgets), offsets)

    def adapt(
        self,
        state: ClientState,
        before: ClientSession,
        catalogue: Catalogue,
        budgets: Integers,
        *,
        anew: bool = False,
        renewed: Collection[int] = (),
    ) -> ClientState:
        """The state under this session, of clients with the `state` of the session `before`.

        They forget everything if `anew`, and what they know of models that went back in `renewed` slots.
        """
        half, held = self.policy.client, padded(state.held_version, len(catalogue), 1, -1)
        earlier = before.slots.within(state.held_version.shape[1])
        change = change_between(earlier, self.slots, catalogue, budgets, renewed)
        fresh = self.join(catalogue, budgets, state.client)
        if anew or (change.kept < 0).all():
            return replace(fresh, held_version=held, exchange=state.exchange)
        own = half.adapt(state.policy, change) if isinstance(half, Adapting) else fresh.policy
        outputs = padded(state.recent.outputs, len(catalogue), 2, np.nan)
        if renewed:
            outputs = outputs.copy()
            outputs[:, :, list(renewed)] = np.nan
        recent = replace(state.recent, outputs=outputs)
        same = self.policy.offset_memories == before.policy.offset_memories
        offsets = state.offsets if same else fresh.offsets
        return replace(state, held_version=held, recent=recent, policy=own, offsets=offsets)

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        """Request the models to hold until the next exchange."""
        selected = self.policy.client.select(state.policy, draws.of(state.client))
        own, wanted = require_parts(self.policy.name, "select", selected, ["state", "models"])
        nothing = np.zeros(state.held_version.shape, dtype=np.bool_)
        wanted = nothing if wanted is None else self.slots.widen(wanted)
        state = replace(state, policy=own, exchange=draws.exchange)
        requests = Requests(draws.exchange, state.client, wanted, state.held_version)
        require_requests(self.policy.name, requests)
        return state, requests

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        """Hold the granted models, and set the weights with which they predict and are fine-tuned.

        A client that requested an earlier exchange takes part in the one that is granted.
        """
        held_version = np.where(grants.held, grants.version, -1)
        if tuning_window_of(self.policy.local, self.schedule, grants.exchange) is None:
            grants = replace(grants, uploads=np.zeros_like(grants.uploads))
        planned = self.policy.client.plan(state.policy, self.slots.narrow_grants(grants))
        own, plan = require_parts(self.policy.name, "plan", planned, ["state", "plan"])
        if not isinstance(plan, Plan):
            raise InvalidInput("policy", self.policy.name, f"its plan has a {type(plan).__name__}; return a Plan")
        plan = replace(self.slots.widen_plan(plan), offset=state.offsets.mean)
        require_plan(self.policy.name, grants, plan)
        if grants.quarantined is not None:
            plan = replace(plan, update_weight=np.where(grants.quarantined, 0.0, plan.update_weight))
        return replace(state, policy=own, held_version=held_version, exchange=grants.exchange), plan

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
        given = (plan.prediction_weights, exchanges, self.policy.remembers, self.policy.offset_memories)
        return loss_by_tuning(state.recent, samples, *given)

    def remember(self, state: ClientState, plan: Plan, samples: Samples) -> ClientState:
        """Add labelled samples, and outputs on past ones, to those that the policy remembers.

        `plan` is the one with which the labelled samples were predicted: from them, offsets are learnt.
        """
        recent, memories = state.recent.add(samples, self.policy.remembers), self.policy.offset_memories
        new, offsets = samples.targets.shape[1], state.offsets
        if memories and new:
            pools = recent.pools(new, plan.prediction_weights)
            offsets = offsets_of.learn(offsets, pools, recent.targets[:, -new:], np.array(memories))
        return replace(state, recent=recent, offsets=offsets)

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
            state = self.remember(state, plan, samples)
        seen = Observations(self.slots.narrow(losses), self.slots.narrow_recent(state.recent))
        own = self.policy.client.learn(state.policy, self.slots.narrow_plan(plan), seen)
        reported = np.where(plan.held, losses, np.nan) if self.policy.reports_losses else None
        if is_control(self.policy.local, state.exchange):
            nothing = np.zeros(plan.held.shape)
            reported = np.where(self.policy.tuned(plan.held), nothing if compared is None else compared, np.nan)
        elif self.policy.reports_use:
            reported = state.recent.losses_by_use(plan.update_weight)
        reports = Reports(state.exchange, state.client, reported, plan.update_weight > 0)
        return replace(state, policy=own), reports


def open_sessions(policy: Policy, fleet: Fleet) -> tuple[ClientSession, ServerSession]:
    """Both sessions of a policy for a fleet."""
    return ClientSession(policy, fleet.schedule), ServerSession(policy, fleet)


def expected_weights(policy: Policy, client: ClientState, server: ServerState, slots: Slots = ALL_MODELS) -> Floats:
    """[N, K] expected prediction weights, for measuring regret."""
    weights = slots.widen(policy.expected_weights(client.policy, server.policy))
    require_probabilities(policy.name, client.exchange, client.client, weights)
    return np.ascontiguousarray(np.broadcast_to(weights, client.held_version.shape))
