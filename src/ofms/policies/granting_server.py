"""The server half of policies whose clients ask for what they want to hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.typing import Flags, Floats, Integers
from ofms.core.uplink import Groups, draw_group, upload_needs
from ofms.policies.protocol import models_to_send, versions_after


@dataclass(frozen=True, eq=False)
class ServerState:
    """What a server remembers between messages: the models' versions, and how many clients take part."""

    upload: Integers
    bandwidth: int
    version: Integers
    clients: int = 0


@dataclass(frozen=True)
class GrantingServer:
    """Grants what was asked for; where clients fine-tune, those of a random group that fits the bandwidth upload.

    `server_step` is the multiplier of (3r2)'s 1/N mean: `N` for the sum of the clients' steps. Without one, nobody
    uploads.
    """

    server_step: float | str | None

    def open(self, catalogue: Catalogue, bandwidth: int) -> ServerState:
        return ServerState(catalogue.upload, bandwidth, catalogue.version)

    def grant(self, state: ServerState, requests: Requests, draws: Draws) -> tuple[ServerState, Grants]:
        groups = None
        if self.server_step is not None:
            needs = upload_needs(requests.wanted, state.upload)
            groups = draw_group(needs, state.bandwidth, draws.single(Purpose.GROUP))
        grants = grants_for(requests, requests.wanted, state.version, groups)
        return replace(state, clients=requests.client.size), grants

    def absorb(self, state: ServerState, reports: Reports) -> tuple[ServerState, Floats]:
        step = np.full(state.version.size, server_step(self.server_step, state.clients))
        return replace(state, version=versions_after(reports, state.version)), step


def grants_for(
    requests: Requests, held: Flags, version: Integers, groups: Groups | None, prediction_weights: Floats | None = None
) -> Grants:
    """What clients get to hold; nobody uploads where there are no groups."""
    nobody = np.zeros(requests.client.size, dtype=np.bool_)
    return Grants(
        exchange=requests.exchange,
        client=requests.client,
        held=held,
        sent=models_to_send(held, requests.holding, version),
        prediction_weights=prediction_weights,
        uploads=nobody if groups is None else groups.uploads,
        groups=1 if groups is None else groups.count,
        version=version,
    )


def server_step(multiplier: float | str | None, clients: int) -> float:
    """How far the server goes along the sum of the clients' updates."""
    if multiplier is None:
        return 0.0
    return 1.0 if multiplier == "N" else float(multiplier) / clients


def require_server_step(step: float | str) -> None:
    """Refuse a multiplier that is none."""
    if step != "N" and not (isinstance(step, int | float) and math.isfinite(step)):
        raise InvalidInput("server_step", step, "give a multiplier of the mean, or 'N' for the sum")
