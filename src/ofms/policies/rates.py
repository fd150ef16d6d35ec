"""Learning rates that depend on a client's budget, resolved for a fleet and sent to its clients as numbers."""

from __future__ import annotations

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats, Integers

# η by budget in bytes.
RateByBudget = dict[int, float]


def rates_of(rates: RateByBudget, budgets: Integers) -> Floats:
    """[N] η of clients with [N] budgets.

    >>> rates_of({30: 0.1, 50: 0.2}, np.array([50, 30, 50]))
    array([0.2, 0.1, 0.2])
    """
    distinct, kind = np.unique(budgets, return_inverse=True)
    for budget in distinct.tolist():
        if budget not in rates:
            raise InvalidInput("budget", f"{budget} bytes", f"the policy was built for {sorted(rates)}")
    return np.array([rates[budget] for budget in distinct.tolist()])[kind]
