"""A simulation in several processes: each has the states and samples of its own clients, and a copy of the server.

Requests and reports of all clients reach every process, so that all of them pack the same groups and take the same
steps. Samples never leave their process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ofms.compute.group import Arrays, Group
from ofms.compute.protocol import ShardUpdates, Summed
from ofms.compute.shards import Block
from ofms.core.draws import Draws
from ofms.core.messages import Grants, Reports, Requests
from ofms.policies.server_session import ServerSession, ServerState, sent_models


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes of a run, and the clients of this one."""

    group: Group
    block: Block

    @property
    def first(self) -> int:
        """The number of this process's first client."""
        return self.block.clients[0]

    def grant(
        self, server: ServerSession, state: ServerState, requests: Requests, draws: Draws
    ) -> tuple[ServerState, Grants]:
        """The grants of this process's clients, decided from the requests of all."""
        if self.group.size == 1:
            return server.grant(state, requests, draws)
        whole, rows = self._gathered({"client": requests.client, "wanted": requests.wanted})
        # What others hold concerns only what is sent to them.
        nothing = np.broadcast_to(np.int64(-1), whole["wanted"].shape)
        everyone = Requests(requests.exchange, whole["client"], whole["wanted"], nothing)
        state, grants = server.grant(state, everyone, draws)
        own = grants.rows(rows)
        return state, replace(own, sent=sent_models(own.held, requests.holding, own.version))

    def reports(self, reports: Reports) -> Reports:
        """The reports of all clients."""
        if self.group.size == 1:
            return reports
        # Whether updates are left out may differ from process to process.
        left_out = np.zeros_like(reports.updated) if reports.left_out is None else reports.left_out
        own = {"client": reports.client, "updated": reports.updated, "left_out": left_out}
        whole, _ = self._gathered(own if reports.losses is None else own | {"losses": reports.losses})
        return Reports(
            reports.exchange,
            whole["client"],
            whole.get("losses"),
            whole["updated"],
            whole["left_out"] if whole["left_out"].any() else None,
        )

    def total(self, updates: ShardUpdates, like: torch.Tensor) -> Summed:
        """The summed updates of all clients, of the type and device of `like`; what is left out, of this process's."""
        return Summed(self.group.total(updates.shards, self.block, like), updates.left_out)

    def pairs(self, own: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Clients and models of all processes, from rows and models of this one."""
        numbered = [(client + self.first, model) for client, model in own]
        if self.group.size == 1:
            return numbered
        parts = self.group.gather({"pairs": np.array(numbered, dtype=np.int64).reshape(-1, 2)})
        return [(int(client), int(model)) for part in parts for client, model in part["pairs"]]

    def _gathered(self, own: Arrays) -> tuple[Arrays, slice]:
        """The rows of all processes that have any clients in the fleet, and where this process's are among them."""
        parts = self.group.gather(own)
        sizes = [part["client"].size for part in parts]
        start = sum(sizes[: self.group.rank])
        some = [part for part in parts if part["client"].size]
        whole = {name: np.concatenate([part[name] for part in some]) for name in some[0]}
        return whole, slice(start, start + sizes[self.group.rank])
