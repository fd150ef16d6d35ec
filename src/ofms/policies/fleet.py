"""The fleet that a policy is built for: models, the clients' memory, bandwidth, schedule."""

from __future__ import annotations

from dataclasses import dataclass

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.packing import smallest_budget
from ofms.core.schedule import Schedule
from ofms.core.typing import Integers


@dataclass(frozen=True, eq=False)
class Fleet:
    """N clients and their server.

    Attributes
    ----------
    catalogue
        The K models and their costs.
    budgets
        [N] B_i, memory for models, in bytes.
    bandwidth
        E, the total upload of all clients per exchange, in bytes.
    schedule
        T rounds, or no horizon, with an exchange every n rounds.
    """

    catalogue: Catalogue
    budgets: Integers
    bandwidth: int
    schedule: Schedule

    @property
    def horizon(self) -> int:
        """n T, the factor in the bounds for an exchange every n rounds (th:5). Rejected without a horizon."""
        if self.schedule.rounds is None:
            raise InvalidInput("rounds", None, "the policy needs the horizon T; give it, or use one that needs none")
        return self.schedule.interval * self.schedule.rounds

    def require_upload(self, largest: int) -> None:
        """Reject a bandwidth below the largest upload of a client: its updates could never be sent (1r2)."""
        if self.bandwidth < largest:
            raise InvalidInput(
                "bandwidth",
                f"{self.bandwidth} bytes",
                f"a client may have to upload {largest} bytes at once; give at least that",
            )


def require_budgets(catalogue: Catalogue, budgets: Integers) -> None:
    """Reject a dictionary of one model, and budgets that violate (a2)."""
    if len(catalogue) < 2:
        raise InvalidInput("models", len(catalogue), "selection needs a dictionary of at least 2 models")
    least = smallest_budget(catalogue.storage)
    if budgets.size == 0:
        raise InvalidInput("clients", 0, "give at least 1")
    if budgets.min() < least:
        raise InvalidInput(
            "budget",
            f"{int(budgets.min())} bytes",
            f"it must hold the two largest models together; give at least {least} bytes",
        )
