"""For whom a policy is built: the models, the clients' memory, the bandwidth, the schedule."""

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
        E, what all clients together may upload in an exchange, in bytes.
    schedule
        T rounds, an exchange every n of them.
    """

    catalogue: Catalogue
    budgets: Integers
    bandwidth: int
    schedule: Schedule

    @property
    def horizon(self) -> int:
        """n T, the factor by which an exchange every n rounds enters the bounds (th:5)."""
        return self.schedule.interval * self.schedule.rounds

    def require_upload(self, largest: int) -> None:
        """Reject a bandwidth below the largest upload that a client may need: its updates would never arrive (1r2)."""
        if self.bandwidth < largest:
            raise InvalidInput(
                "bandwidth",
                f"{self.bandwidth} bytes",
                f"a client may have to upload {largest} bytes at once; give at least that",
            )


def require_budgets(catalogue: Catalogue, budgets: Integers) -> None:
    """Reject a dictionary of one model, and a budget below (a2)."""
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
