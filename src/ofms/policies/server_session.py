"""The server's side of a running policy: versions of the models, groups that upload, models that go back or diverge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ofms.core.draws import Draws, Purpose
from ofms.core.messages import Grants, Reports, Requests
from ofms.core.robust import moderate_votes, robust_losses
from ofms.core.typing import Flags, Floats, Integers
from ofms.core.uplink import Groups, draw_group, upload_needs
from ofms.policies.changes import ALL_MODELS, Adapting, Slots, change_between, padded
from ofms.policies.controls import clearly_worse, gains_by_tuning
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import copies_held, is_control
from ofms.policies.protocol import LateLearner, Policy, SummedUpdates
from ofms.policies.rules import require_held, require_parts, require_steps


@dataclass(frozen=True, eq=False)
class ServerState:
    """[K] versions of the models, the number of clients in the exchange, the policy's own state, and [K] the models
    that diverged."""

    version: Integers
    clients: int
    policy: Any
    quarantined: Flags


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

    def adapt(
        self, state: ServerState, before: ServerSession, *, anew: bool = False, renewed: Collection[int] = ()
    ) -> ServerState:
        """The state under this session, from the `state` of the session `before`; `anew` if the policy forgets.

        Models that went back in `renewed` slots have new versions, are not quarantined any more, and are new to it.
        """
        half, catalogue = self.policy.server, self.fleet.catalogue
        own = half.start(self.slots.catalogue(catalogue))
        if not anew and isinstance(half, Adapting):
            earlier = before.slots.within(len(before.fleet.catalogue))
            nobody = np.zeros(0, dtype=np.int64)
            change = change_between(earlier, self.slots, catalogue, nobody, renewed)
            own = half.adapt(state.policy, change) if (change.kept >= 0).any() else own
        version, quarantined = (padded(each, len(catalogue), 0, 0) for each in (state.version, state.quarantined))
        if renewed:
            back = np.isin(np.arange(len(catalogue)), list(renewed))
            version, quarantined = version + back, quarantined & ~back
        return replace(state, version=version, policy=own, quarantined=quarantined)

    def grant(self, state: ServerState, requests: Requests, draws: Draws) -> tuple[ServerState, Grants]:
        """Decide which models each client holds; if clients fine-tune, draw the group that uploads."""
        wanted = self.slots.narrow(requests.wanted)
        granted = self.policy.server.grant(state.policy, wanted, draws)
        parts = ["state", "models", "prediction weights"]
        own, held, prediction_weights = require_parts(self.policy.name, "grant", granted, parts)
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
            sent=sent_models(held, requests.holding, version),
            prediction_weights=prediction_weights,
            uploads=np.zeros(requests.client.size, dtype=np.bool_) if groups is None else groups.uploads,
            groups=1 if groups is None else groups.count,
            version=version,
            quarantined=state.quarantined if state.quarantined.any() else None,
        )
        return replace(state, clients=requests.client.size, policy=own), grants

    def absorb(
        self,
        state: ServerState,
        reports: Reports,
        sizes: tuple[Floats, Floats, Floats] | None = None,
        awaited: int = 0,
    ) -> tuple[ServerState, Floats]:
        """Learn from the reports; return [K] steps along the summed updates. Changed models get new versions.

        `sizes` are those of `SummedUpdates`: products, norms and parameters; zeros if left out. Models whose updates
        are not finite, or their sum, are quarantined, and not moved. `awaited` clients may report later.
        """
        nothing, restored = np.zeros(len(self.fleet.catalogue)), self.restored(state, reports)
        reports = self._moderate(reports)
        products, norms, parameters = sizes or (nothing, nothing, nothing)
        quarantined = state.quarantined | reports.lost() | ~(np.isfinite(products) & np.isfinite(norms))
        if quarantined.any():
            reports = replace(reports, updated=reports.updated & ~quarantined)
            products, norms = np.where(quarantined, 0.0, products), np.where(quarantined, 0.0, norms)
        gains = np.zeros(restored.shape)
        if reports.losses is not None and is_control(self.policy.local, reports.exchange):
            gains = gains_by_tuning(reports.losses)
        summed = SummedUpdates(state.clients, products, norms, parameters, restored, gains, awaited)
        learnt = self.policy.server.learn(state.policy, self.slots.narrow_reports(reports), self._narrowed(summed))
        own, step = require_parts(self.policy.name, "learn", learnt, ["state", "step"])
        version = state.version + (reports.updated.any(axis=0) | restored)
        step = np.asarray(step, np.float64)
        steps = np.broadcast_to(self.slots.widen(step) if step.ndim else step, version.shape)
        require_steps(self.policy.name, reports.exchange, steps)
        return replace(state, version=version, policy=own, quarantined=quarantined), steps

    @property
    def learns_late(self) -> bool:
        """Whether reports may come after their exchange: always, unless the server learns from losses as they come."""
        return not self.policy.reports_losses or isinstance(self.policy.server, LateLearner)

    def learn_late(self, state: ServerState, then: Any, reports: Reports, clients: int) -> ServerState:
        """Learn from reports on an earlier exchange of so many clients; `then` is the policy's state after its grants.

        Policies whose estimates need no probabilities learn from late reports together with those in time.
        """
        half = self.policy.server
        if not isinstance(half, LateLearner):
            return state
        return replace(state, policy=half.learn_late(state.policy, then, self.slots.narrow_reports(reports), clients))

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
        reports = self._moderate(reports)
        tuned: Flags = state.version != self.fleet.catalogue.version
        lost = tuned & reports.lost() & ~state.quarantined
        if reports.losses is None or not is_control(self.policy.local, reports.exchange):
            return lost
        worse: Flags = self.policy.tuned(tuned[None])[0] & clearly_worse(reports.losses)
        return lost | worse

    def _moderate(self, reports: Reports) -> Reports:
        """With robust aggregation, the reports with losses that a few clients cannot move far."""
        aggregation, losses = self.policy.aggregation, reports.losses
        if losses is None or not (aggregation.robust and self.policy.reports_use):
            return reports
        if is_control(self.policy.local, reports.exchange):
            return replace(reports, losses=moderate_votes(losses))
        return replace(reports, losses=robust_losses(losses, reports.updated, aggregation))

    def _narrowed(self, summed: SummedUpdates) -> SummedUpdates:
        """Of the models in use."""
        if self.slots.places is None:
            return summed
        by_model = (summed.products, summed.norms, summed.parameters, summed.restored, summed.gains)
        products, norms, parameters, restored, gains = map(self.slots.narrow, by_model)
        return SummedUpdates(summed.clients, products, norms, parameters, restored, gains, summed.awaited)

    def _draw_group(self, held: Flags, draws: Draws) -> Groups | None:
        """alg:6, steps 12 to 14; None if the policy does not fine-tune."""
        if self.policy.local is None:
            return None
        needs, bandwidth = upload_needs(self.policy.tuned(held), self.fleet.catalogue.upload), self.fleet.bandwidth
        if self.policy.upload_groups is not None:
            bandwidth = -(-needs.size // self.policy.upload_groups) * int(needs.max())
        return draw_group(needs, bandwidth, draws.single(Purpose.GROUP))


def sent_models(held: Flags, holding: Integers, version: Integers) -> Flags:
    """[N, K] the held models that clients do not have in their current version."""
    sent: Flags = held & (holding != version)
    return sent
