"""The server half of policies whose clients choose the models that they hold."""

from __future__ import annotations

from dataclasses import dataclass

from ofms.core.draws import Draws
from ofms.core.messages import Catalogue, Reports
from ofms.core.typing import Flags
from ofms.policies.protocol import SummedUpdates
from ofms.policies.settings import ServerStep


@dataclass(frozen=True)
class GrantingServer:
    """Grant what was requested, and average the updates.

    `server_step` multiplies the 1/N mean of (3r2): `N` for the sum of the clients' steps.
    """

    server_step: ServerStep = 0.0

    def start(self, catalogue: Catalogue) -> None:
        return None

    def grant(self, state: None, wanted: Flags, draws: Draws) -> tuple[None, Flags, None]:
        return None, wanted, None

    def learn(self, state: None, reports: Reports, summed: SummedUpdates) -> tuple[None, float]:
        return None, step_of(self.server_step, summed.clients)


def step_of(multiplier: ServerStep, clients: int) -> float:
    """The step along the sum of the clients' updates.

    >>> step_of(1, 4), step_of("N", 4)
    (0.25, 1.0)
    """
    return 1.0 if multiplier == "N" else float(multiplier) / clients
