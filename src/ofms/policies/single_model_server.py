"""The server half of policies that fine-tune one model of the dictionary with all clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Reports
from ofms.core.typing import Flags, Floats
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import SummedUpdates


@dataclass(frozen=True)
class SingleModelServer:
    """Grant one model to all clients and average their updates.

    The updates of the uploading group have weight α/N, so that their expected sum is the mean over all clients.
    """

    model: int

    def start(self, catalogue: Catalogue) -> None:
        return None

    def grant(self, state: None, wanted: Flags, draws: Draws) -> tuple[None, Flags, Floats]:
        held = np.zeros(wanted.shape, dtype=np.bool_)
        held[:, self.model] = True
        return None, held, held.astype(np.float64)

    def learn(self, state: None, reports: Reports, summed: SummedUpdates) -> tuple[None, float]:
        return None, 1.0 / summed.clients


def find_model(catalogue: Catalogue, model: int | str) -> int:
    """The index of a model given by index or by name."""
    if isinstance(model, str) and model in catalogue.names:
        return catalogue.names.index(model)
    if isinstance(model, int) and 0 <= model < len(catalogue):
        return model
    raise InvalidInput("model", model, f"give a name from the dictionary or an index from 0 to {len(catalogue) - 1}")


def single_model_server(
    fleet: Fleet, model: int | str, *, upload_groups: int | None, copies: int = 1
) -> SingleModelServer:
    """The server half for a fleet; every budget must hold `copies` of the model."""
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
    return SingleModelServer(index)


def weight_on(model: int, models: int) -> Floats:
    """[1, K] all weight on one model."""
    weights = np.zeros((1, models))
    weights[0, model] = 1.0
    return weights
