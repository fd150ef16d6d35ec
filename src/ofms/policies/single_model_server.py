"""The server half of policies that fine-tune one model of the dictionary with all clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.typing import Floats
from ofms.core.uplink import draw_group, upload_needs
from ofms.policies.granting_server import ServerState, grants_for
from ofms.policies.protocol import Fleet, require_budgets, versions_after


@dataclass(frozen=True)
class SingleModelServer:
    """Gives `model` to everybody and averages the updates; under limited bandwidth a random group uploads.

    A group's updates count α times and are divided by N, so that their expectation is the mean over all clients.
    `upload_groups` sets a group's size, N over it, whatever the bandwidth is: 1 lets everybody upload.
    """

    model: int
    upload_groups: int | None = None

    def open(self, catalogue: Catalogue, bandwidth: int) -> ServerState:
        return ServerState(catalogue.upload, bandwidth, catalogue.version)

    def grant(self, state: ServerState, requests: Requests, draws: Draws) -> tuple[ServerState, Grants]:
        held = np.zeros(requests.wanted.shape, dtype=np.bool_)
        held[:, self.model] = True
        needs = upload_needs(held, state.upload)
        bandwidth = state.bandwidth
        if self.upload_groups is not None:
            bandwidth = -(-requests.client.size // self.upload_groups) * int(state.upload[self.model])
        groups = draw_group(needs, bandwidth, draws.single(Purpose.GROUP))
        grants = grants_for(requests, held, state.version, groups, prediction_weights=held.astype(np.float64))
        return replace(state, clients=requests.client.size), grants

    def absorb(self, state: ServerState, reports: Reports) -> tuple[ServerState, Floats]:
        step = np.full(state.version.size, 1.0 / state.clients)
        return replace(state, version=versions_after(reports, state.version)), step

    def expected_weights(self, client: object, server: ServerState) -> Floats:
        prediction_weights = np.zeros((server.clients, server.version.size))
        prediction_weights[:, self.model] = 1.0
        return prediction_weights


def find_model(catalogue: Catalogue, model: int | str) -> int:
    """The index of a model given by index or by name."""
    if isinstance(model, str) and model in catalogue.names:
        return catalogue.names.index(model)
    if isinstance(model, int) and 0 <= model < len(catalogue):
        return model
    raise InvalidInput("model", model, f"give a name from the dictionary or an index from 0 to {len(catalogue) - 1}")


def single_model_server(
    fleet: Fleet, model: int | str, *, batch_size: int, epochs: int, upload_groups: int | None, copies: int = 1
) -> SingleModelServer:
    """The server half for a fleet, once what it needs is there: memory for `copies` of the model among it."""
    require_budgets(fleet.catalogue, fleet.budgets)
    index = find_model(fleet.catalogue, model)
    needed = copies * int(fleet.catalogue.storage[index])
    if fleet.budgets.min() < needed:
        raise InvalidInput(
            "budget",
            f"{int(fleet.budgets.min())} bytes",
            f"{copies} copies of {fleet.catalogue.names[index]} take {needed} bytes; give at least that",
        )
    if upload_groups is None:
        fleet.require_upload(int(fleet.catalogue.upload[index]))
    for field, value in (("batch_size", batch_size), ("epochs", epochs), ("upload_groups", upload_groups)):
        if value is not None and value < 1:
            raise InvalidInput(field, value, "give at least 1")
    return SingleModelServer(index, upload_groups)
