"""The description of a policy in a welcome: all its values as the server resolved them."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from ofms.core.errors import InvalidInput
from ofms.device.client_policy import describe_policy, read_policy
from ofms.policies import MODULES
from ofms.policies.protocol import ClientPolicy
from tests.problems import fleet_of, policy_of


@pytest.mark.parametrize("name", list(MODULES))
def test_a_policy_is_read_as_it_was_described(name: str) -> None:
    policy = policy_of(name, fleet_of([4, 3, 2], [8, 9, 8], rounds=50, interval=2))
    found = read_policy(json.loads(json.dumps(describe_policy(policy))))
    for each in fields(ClientPolicy):
        assert getattr(found, each.name) == getattr(policy, each.name), each.name


def test_rates_are_sent_as_numbers() -> None:
    """μ = 19 and 5 for twenty equal models and budgets of 2 and 5: η = √(ln 20/(μ T))."""
    described = describe_policy(policy_of("ofms-ft", fleet_of([1] * 20, [2, 5], rounds=200)))
    assert described["client"]["rates"] == pytest.approx({"2": 0.0280777, "5": 0.0547333}, rel=1e-5)
    assert isinstance(described["local"]["rate"], float)


def test_a_client_half_that_is_not_plain_data_is_refused() -> None:
    policy = policy_of("ofms-ft", fleet_of([4, 3, 2], [8]))
    with pytest.raises(InvalidInput, match="policy = ofms-ft: its client half must be a dataclass of plain values"):
        describe_policy(replace(policy, client=object()))  # type: ignore[arg-type]
