"""Subsets of models that fit a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.policies.subsets import fill_budgets, fixed_subset, largest_upload, most_upload, require_subset
from tests.problems import catalogue_of, fleet_of, policy_of


def test_the_first_models_that_fit() -> None:
    """Of 2, 4, 1 and 3 bytes: seven hold the first three, five skip the second, two hold the first alone."""
    found = fixed_subset("first", catalogue_of([2, 4, 1, 3]), np.array([7, 5, 2]))
    assert found is not None
    assert found.tolist() == [[True, True, True, False], [True, False, True, False], [True, False, False, False]]
    assert fixed_subset("random", catalogue_of([2, 4]), np.array([7])) is None
    policy_of("non-fed-oms", fleet_of([2, 4, 1, 3], [7, 9]), subset="first")


def test_a_list_is_the_same_for_all_clients() -> None:
    found = fixed_subset(["model2", 0], catalogue_of([2, 4, 1]), np.array([7, 5]))
    assert found is not None
    assert found.tolist() == [[True, False, True]] * 2


def test_of_equal_priorities_the_first_model_is_taken() -> None:
    """Many equal ones, because other kinds of sorting keep the order of a few."""
    costs, priority = np.ones(40, dtype=np.int64), np.tile([1.0, 0.0], 20)[None]
    held = fill_budgets(priority, costs, np.array([22]))[0]
    assert np.flatnonzero(held).tolist() == sorted([*range(1, 40, 2), 0, 2])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(1, 30),
)
def test_no_subset_that_fits_uploads_more_than_the_bound(models: list[tuple[int, int]], budget: int) -> None:
    """The bound is the fractional knapsack, so it is less than one model above the best subset."""
    catalogue = catalogue_of([cost for cost, _ in models])
    catalogue = replace(catalogue, upload=np.array([up for _, up in models]))
    fitting = [
        sum(models[index][1] for index in chosen)
        for size in range(len(models) + 1)
        for chosen in combinations(range(len(models)), size)
        if sum(models[index][0] for index in chosen) <= budget
    ]
    bound = most_upload(catalogue, budget)
    assert max(fitting) <= bound <= max(fitting) + max(up for _, up in models)
    assert largest_upload("random", catalogue, budget) == bound


def test_the_bound_on_uploads_by_hand() -> None:
    """Ratios 1/4, 3 and 1: the second model whole, then of the third three of its four bytes."""
    catalogue = catalogue_of([4, 2, 4])
    catalogue = replace(catalogue, upload=np.array([1, 6, 4]))
    assert most_upload(catalogue, 5) == 9
    assert most_upload(catalogue, 100) == 11
    assert largest_upload(["model0", 2], catalogue, 100) == 5


def test_a_list_must_fit_the_smallest_budget() -> None:
    catalogue, budgets = catalogue_of([2, 4, 1]), np.array([6, 9])
    require_subset([0, 1], catalogue, budgets)
    with pytest.raises(InvalidInput, match=r"it takes 7 bytes and a client has 6"):
        require_subset([0, 1, 2], catalogue, budgets)
    with pytest.raises(InvalidInput, match="name at least one model"):
        require_subset([], catalogue, budgets)
