"""Budgets and bandwidths as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.runs.units import parse_bandwidth, parse_budgets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", [500] * 4),
        ("2.5", [250] * 4),
        ("64MiB", [64 * 2**20] * 4),
        ("3kB", [3000] * 4),
        ("1,2,3,4", [100, 200, 300, 400]),
        ("3:50%,5:50%", [300, 500, 300, 500]),
    ],
)
def test_budgets(text: str, expected: list[int]) -> None:
    assert parse_budgets(text, largest=100, clients=4).tolist() == expected


@given(st.integers(1, 200), st.integers(1, 99))
def test_shares_are_spread_evenly(clients: int, percent: int) -> None:
    budgets = parse_budgets(f"3:{percent}%,5:{100 - percent}%", largest=1, clients=clients)
    for first in range(1, clients + 1):
        small = int((budgets[:first] == 3).sum())
        assert abs(small - percent / 100 * first) <= 1


@pytest.mark.parametrize("text", ["", "five", "5 parsecs", "-3", "3:60%,5:30%", "3:60%,5", "3:60,5:40", "1,2", "nan"])
def test_an_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="budget = "):
        parse_budgets(text, largest=100, clients=4)


@pytest.mark.parametrize(("text", "expected"), [("50%", 500), ("110%", 1100), ("2GB", 2 * 10**9), ("7", 700)])
def test_bandwidths(text: str, expected: int) -> None:
    assert parse_bandwidth(text, largest=100, budgets=np.array([400, 600])) == expected


@pytest.mark.parametrize("text", ["half", "", "50 %%", "-1"])
def test_an_invalid_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="bandwidth = "):
        parse_bandwidth(text, largest=100, budgets=np.array([400, 600]))
