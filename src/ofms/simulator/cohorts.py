"""Clients of a simulation in cohorts: those that join and leave together, so that one state describes them.

Arrays outside have a row for every client of the stream; rows of clients that are not in the fleet are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ofms.core.draws import Draws
from ofms.core.messages import Grants, Plan, Reports, Requests
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.policies.observations import Samples
from ofms.policies.protocol import Policy
from ofms.policies.session import ClientSession, ClientState, ServerState, expected_weights

States = tuple[ClientState, ...]


@dataclass(frozen=True, eq=False)
class Cohorts:
    """The client session of all cohorts, the rows of the clients in each, and the number of all rows.

    Attributes
    ----------
    numbers
        The numbers of all clients in each cohort, in other processes too; by default those of the rows.
    first
        The number of the client in row 0.
    models
        The number of models; only needed if none of the clients is in the fleet.
    """

    session: ClientSession
    members: tuple[Integers, ...]
    total: int
    numbers: tuple[Integers, ...] = ()
    first: int = 0
    models: int = 0

    @classmethod
    def of(cls, session: ClientSession, numbers: Sequence[Integers], clients: tuple[int, int], models: int) -> Cohorts:
        """The cohorts that have some of the clients from the first number to before the second."""
        first, stop = clients
        rows = [each[(each >= first) & (each < stop)] - first for each in numbers]
        some = [place for place, own in enumerate(rows) if own.size]
        of_some = tuple(numbers[place] for place in some)
        return cls(session, tuple(rows[place] for place in some), stop - first, of_some, first, models)

    @cached_property
    def present(self) -> Integers:
        """The rows of the clients in the fleet, in order."""
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *self.members]))

    @property
    def everyone(self) -> bool:
        """Whether one cohort has all clients: then nothing is copied."""
        return len(self.members) == 1 and self.members[0].size == self.total

    def request(self, states: States, draws: Draws) -> tuple[States, Requests]:
        """The requests of the clients in the fleet."""
        if not states:
            nobody, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, self.models), dtype=np.bool_)
            return states, Requests(draws.exchange, nobody, nothing, nothing.astype(np.int64))
        parts = [self.session.request(state, draws) for state in states]
        requests = parts[0][1] if len(parts) == 1 else Requests.stack([each for _, each in parts])
        if len(parts) > 1:
            requests = requests.rows(np.argsort(requests.client))
        return tuple(state for state, _ in parts), requests

    def plan(self, states: States, grants: Grants) -> tuple[States, Plan]:
        """The plans of all clients."""
        if self.everyone:
            state, plan = self.session.plan(states[0], grants)
            return (state,), plan
        parts = [
            self.session.plan(state, grants.rows(np.searchsorted(self.present, own)))
            for state, own in zip(states, self.members, strict=True)
        ]
        if not parts:
            return (), self._no_plan()
        stacked, order = Plan.stack([plan for _, plan in parts]), np.argsort(np.concatenate(self.members))
        whole = stacked.for_clients(lambda rows: self.spread(rows[order]))
        return tuple(state for state, _ in parts), whole

    def expected_weights(self, policy: Policy, states: States, server: ServerState) -> Floats:
        """[N, S] expected prediction weights, for measuring regret."""
        found = [expected_weights(policy, state, server, self.session.slots) for state in states]
        if not states:
            return np.zeros((self.total, self.models))
        return found[0] if self.everyone else self._whole(found)

    def late(self, states: States, plan: Plan) -> Integers | None:
        """[N, S] the number of past samples on which models are to be evaluated; None if none are remembered."""
        found = [self.session.late(state, _rows(plan, own)) for state, own in self._with(states, plan)]
        known = [each for each in found if each is not None]
        return None if not known else known[0] if self.everyone else self._whole(known)

    def learn(self, states: States, plan: Plan, losses: Floats, samples: Samples | None) -> tuple[States, Reports]:
        """Learn from [N, S] losses; the reports of the clients in the fleet."""
        parts = [
            self.session.learn(state, _rows(plan, own), losses[own], None if samples is None else samples.rows(own))
            for state, own in self._with(states, plan)
        ]
        if not states:
            return states, Reports(0, np.zeros(0, dtype=np.int64), None, np.zeros((0, self.models), dtype=np.bool_))
        reports = [each for _, each in parts]
        stacked = reports[0] if len(reports) == 1 else Reports.stack(reports)
        if len(reports) > 1:
            stacked = stacked.rows(np.argsort(stacked.client))
        return tuple(state for state, _ in parts), stacked

    def whole_reports(self, reports: Reports) -> Reports:
        """With an empty row for every client that is not in the fleet."""
        if self.present.size == self.total:
            return reports
        losses = None if reports.losses is None else self.spread(reports.losses, np.nan)
        return Reports(reports.exchange, np.arange(self.total), losses, self.spread(reports.updated))

    def whole_grants(self, grants: Grants) -> Grants:
        """With an empty row for every client that is not in the fleet."""
        if self.present.size == self.total:
            return grants
        rows: dict[str, AnyArray | None] = {}
        for name in ("held", "sent", "uploads", "prediction_weights"):
            part = getattr(grants, name)
            rows[name] = None if part is None else self.spread(part)
        return replace(grants, client=np.arange(self.total), **rows)  # type: ignore[arg-type]

    def _with(self, states: States, plan: Plan) -> list[tuple[ClientState, slice | Integers]]:
        if self.everyone:
            return [(states[0], slice(None))]
        return list(zip(states, self.members, strict=True))

    def _no_plan(self) -> Plan:
        """Nobody is in the fleet."""
        nothing = np.zeros((self.total, self.models))
        return Plan(nothing > 0, nothing, nothing, nothing)

    def _whole(self, parts: list[AnyArray], fill: float = 0) -> AnyArray:
        """Rows of all clients, from those of the cohorts."""
        whole = np.full((self.total, *parts[0].shape[1:]), fill, dtype=parts[0].dtype)
        for own, part in zip(self.members, parts, strict=True):
            whole[own] = part
        return whole

    def spread(self, present: AnyArray, fill: float = 0) -> AnyArray:
        """Rows of all clients, from those of the clients in the fleet."""
        if self.present.size == self.total:
            return present
        whole = np.full((self.total, *present.shape[1:]), fill, dtype=present.dtype)
        whole[self.present] = present
        return whole


def _rows(plan: Plan, rows: slice | Integers) -> Plan:
    if isinstance(rows, slice):
        return plan
    return plan.for_clients(lambda array: array[rows])
