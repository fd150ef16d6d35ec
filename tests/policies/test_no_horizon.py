"""Policies in a fleet without a horizon: rates as numbers suffice, others are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.core.schedule import Schedule
from ofms.policies import MODULES
from ofms.policies.exp3 import exp3_of
from ofms.policies.fleet import Fleet
from tests.policy_settings import SETTINGS
from tests.problems import fleet_of, policy_of


def fleets() -> tuple[Fleet, Fleet]:
    """The same fleet with and without a horizon."""
    fleet = fleet_of([3, 2, 2, 1], [6, 8], interval=2)
    return fleet, replace(fleet, schedule=Schedule(None, 2))


@pytest.mark.parametrize("name", list(MODULES))
def test_with_rates_as_numbers_a_policy_needs_no_horizon(name: str) -> None:
    finite, endless = (policy_of(name, fleet, **SETTINGS[name]) for fleet in fleets())
    assert (endless.local, endless.loss_bound, endless.observes) == (finite.local, finite.loss_bound, finite.observes)
    assert endless.bound is None
    if finite.bound is not None:
        assert endless.not_covered == "there is no horizon"


@pytest.mark.parametrize(
    ("name", "settings", "refused"),
    [
        ("ofms-ft", {"fine_tuning_rate": 0.1}, "learning_rate = tuned"),
        ("ofms-ft", {"learning_rate": "10/sqrt(T)", "fine_tuning_rate": 0.1}, "learning_rate = 10/sqrt(T)"),
        ("ofms-ft", {"learning_rate": 0.1}, "fine_tuning_rate = tuned"),
        ("ofms-ft", {"learning_rate": 0.1, "fine_tuning_rate": "1/sqrt(T)"}, "fine_tuning_rate = 1/sqrt(T)"),
        ("rms-ft", {"fine_tuning_rate": "1/sqrt(T)"}, "fine_tuning_rate = 1/sqrt(T)"),
        ("mab", {}, "learning_rate = tuned"),
        ("non-fed-oms", {}, "learning_rate = tuned"),
        ("b-fed-omft", {"learning_rate": 0.1, "fine_tuning_rate": "1/sqrt(T)"}, "fine_tuning_rate = 1/sqrt(T)"),
        ("budgeted-experts", {}, "learning_rate = tuned"),
        ("fed-omd", {"local_rate": "1/sqrt(T)"}, "local_rate = 1/sqrt(T)"),
        ("perfedavg", {"local_rate": 0.1, "adaptation_rate": "1/sqrt(T)"}, "adaptation_rate = 1/sqrt(T)"),
    ],
)
def test_a_setting_that_depends_on_the_horizon_is_refused(name: str, settings: dict[str, Any], refused: str) -> None:
    finite, endless = fleets()
    policy_of(name, finite, **settings)
    with pytest.raises(InvalidInput) as caught:
        policy_of(name, endless, **settings)
    assert str(caught.value).startswith(f"{refused}: it depends on the horizon T; give rounds")


def test_a_policy_that_reads_the_horizon_is_refused_without_one() -> None:
    finite, endless = fleets()
    assert finite.horizon == 100
    with pytest.raises(InvalidInput, match="rounds = None: the policy needs the horizon T; give it, or use one that"):
        _ = endless.horizon


def test_exp3_with_a_rate_as_a_number_learns_the_same_without_a_horizon() -> None:
    losses = np.random.default_rng(0).random((2, 4))
    subset = np.ones((2, 4), dtype=np.bool_)
    finite, endless = (exp3_of(0.5, 0.1, "one", fleet).probabilities(losses, subset) for fleet in fleets())
    assert finite.tolist() == endless.tolist()
