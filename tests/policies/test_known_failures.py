"""Sequences of losses on which published implementations of bandits fail, for every policy.

- Exp3 that multiplies weights overflows after 2,840 rounds with K = 2 and γ = 0.5.
- Weights exp(-η Λ) are 0/0 after some hundred rounds of unbounded cross-entropy.
- A set of models whose weights all underflowed is renormalised by 0.

`tests/simulator/test_extreme_losses.py` has the same for the rules by themselves, and rewards that are no number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ofms.core.draws import Draws
from ofms.core.typing import Floats
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet
from ofms.policies.observations import Samples
from ofms.policies.registry import setting_names
from ofms.policies.session import expected_weights, open_sessions
from tests.problems import fleet_of, policy_of

# They use one model, or choose regardless of losses.
INDIFFERENT = {"rms-ft", "fed-omd", "perfedavg"}


def weights_after(name: str, fleet: Fleet, losses: Floats, rounds: int, **settings: Any) -> Floats:
    """[K] the expected prediction weights of one client after rounds of the same [K] losses, valid in each of them."""
    known = {key: value for key, value in settings.items() if key in setting_names(name)}
    policy = policy_of(name, fleet, **known)
    clients, servers = open_sessions(policy, fleet)
    client, server = clients.join(fleet.catalogue, fleet.budgets, np.arange(1)), servers.open()
    for exchange in range(rounds):
        draws = Draws(0, exchange)
        client, requests = clients.request(client, draws)
        server, grants = servers.grant(server, requests, draws)
        client, plan = clients.plan(client, grants)
        # Rejects what is not a probability: NaN, infinite, or a sum other than 1.
        weights = expected_weights(policy, client, server)
        late, samples = clients.late(client, plan), None
        if late is not None:
            length = int(late.max()) + 1
            evaluated = plan.held[:, None] & (np.arange(length, 0, -1)[:, None] <= late[:, None] + 1)
            samples = Samples.of(exchange, np.where(evaluated, np.sqrt(losses), np.nan)[..., None], np.zeros((1, 1)))
        observed = np.where(policy.observed(plan), losses, np.nan)
        client, reports = clients.learn(client, plan, observed, samples)
        server, _ = servers.absorb(server, reports)
    last: Floats = weights[0]
    return last


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_3000_rounds_of_two_models_overflow_nothing(name: str) -> None:
    fleet = fleet_of([1, 1], [2], bandwidth=8, rounds=3000)
    exploration = 100 if name == "explore-then-commit" else 0.5
    found = weights_after(name, fleet, np.array([0.0, 1.0]), 3000, exploration=exploration, learning_rate=0.5)
    assert found[0] >= 0.5 or name in INDIFFERENT


@pytest.mark.parametrize("name", MODULES)
def test_unbounded_losses_leave_valid_weights(name: str) -> None:
    """700 at once is more than exp takes; after 559 rounds of 9 and 12 so are the sums of the others."""
    fleet = fleet_of([1, 1, 1, 1], [2], bandwidth=8, rounds=600)
    found = weights_after(name, fleet, np.array([12.0, 9.0, 700.0, 700.0]), 600, loss_bound="raw", learning_rate=1.0)
    assert found[:2].sum() > 0.9 or name in INDIFFERENT
