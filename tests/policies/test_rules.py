"""Every rule by itself: the line that names policy, client, exchange, model and rule, and what is still allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants, Plan, Requests
from ofms.policies import rules
from ofms.policies.rules import BrokenRule, require_held, require_plan, require_probabilities, require_requests

CLIENTS = np.array([7, 5, 9])
HELD = np.array([[True, True, False], [True, False, True], [False, True, True]])
# Of three clients, the last two upload.
GRANTS = Grants(4, CLIENTS, HELD, HELD, None, np.array([False, True, True]), 2, np.zeros(3, dtype=np.int64))
REQUESTS = Requests(4, CLIENTS, HELD, np.zeros((3, 3), dtype=np.int64))
PLAN = Plan(HELD, HELD / 2, np.where(HELD, 0.5, 0.0), np.where(HELD & np.array([[False], [True], [True]]), 1.0, 0.0))

NO_WEIGHT = "a prediction weight is negative or not finite"


def message(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as error:
        call()
    return str(error.value)


def with_value(name: str, row: int, column: int, value: float) -> Plan:
    array = np.array(getattr(PLAN, name))
    array[row, column] = value
    return replace(PLAN, **{name: array})


def test_a_plan_that_keeps_every_rule_passes() -> None:
    require_plan("own", GRANTS, PLAN)
    require_plan("own", GRANTS, replace(PLAN, held=HELD.copy()))
    whole: Any = np.eye(3, dtype=np.int64)[[0, 0, 1]]
    require_plan("own", GRANTS, replace(PLAN, prediction_weights=whole))
    require_plan("own", GRANTS, with_value("update_weight", 1, 0, float(np.finfo(np.float64).max)))
    require_plan("own", GRANTS, with_value("inclusion", 0, 0, 1 + 1e-6))
    single: Any = (HELD / 2 + np.where(HELD, 1e-7, 0)).astype(np.float32)
    require_plan("own", GRANTS, replace(PLAN, prediction_weights=single))


@pytest.mark.parametrize(
    ("name", "row", "column", "value", "rule"),
    [
        ("held", 1, 1, 1, "client 5, exchange 4: it holds other models than it was granted (model 1)"),
        ("prediction_weights", 1, 1, -0.5, f"client 5, exchange 4: {NO_WEIGHT} (model 1)"),
        ("prediction_weights", 2, 2, np.inf, f"client 9, exchange 4: {NO_WEIGHT} (model 2)"),
        ("prediction_weights", 0, 0, np.nan, f"client 7, exchange 4: {NO_WEIGHT} (model 0)"),
        ("prediction_weights", 1, 0, 0.75, "client 5, exchange 4: its prediction weights sum to 1.25, not to 1"),
        ("prediction_weights", 1, 0, 0.50002, "client 5, exchange 4: its prediction weights sum to 1.00002, not to 1"),
        ("inclusion", 2, 1, 1.5, "client 9, exchange 4: an inclusion probability is not in [0, 1] (model 1)"),
        ("inclusion", 2, 1, -0.1, "client 9, exchange 4: an inclusion probability is not in [0, 1] (model 1)"),
        ("inclusion", 1, 2, 0, "client 5, exchange 4: a model predicts whose inclusion probability is 0 (model 2)"),
        ("update_weight", 1, 2, -1, "client 5, exchange 4: an update weight is negative or not finite (model 2)"),
        ("update_weight", 1, 2, np.inf, "client 5, exchange 4: an update weight is negative or not finite (model 2)"),
        ("update_weight", 1, 1, 2, "client 5, exchange 4: it updates a model that it may not upload (model 1)"),
        ("update_weight", 0, 0, 2, "client 7, exchange 4: it updates a model that it may not upload (model 0)"),
    ],
)
def test_a_broken_rule_is_named(name: str, row: int, column: int, value: float, rule: str) -> None:
    broken = with_value(name, row, column, value)
    assert message(lambda: require_plan("own", GRANTS, broken)) == f"policy = own: {rule}; correct the policy"


def test_a_model_that_is_not_held_does_not_predict() -> None:
    weights = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
    broken = replace(PLAN, prediction_weights=weights, inclusion=np.ones((3, 3)))
    assert message(lambda: require_plan("own", GRANTS, broken)) == (
        "policy = own: client 9, exchange 4: it predicts with a model that it does not hold (model 0); "
        "correct the policy"
    )


@pytest.mark.parametrize("name", ["prediction_weights", "inclusion", "update_weight"])
def test_arrays_of_a_plan_are_numbers_for_each_client_and_model(name: str) -> None:
    expected = f"policy = own: exchange 4: the plan's {name} must be an array of numbers [3, 3], not "
    for wrong, found in ((np.ones((3, 2)), "float64 [3, 2]"), (HELD, "bool [3, 3]"), ([1.0], "list")):
        changed: Any = replace(PLAN, **{name: wrong})  # type: ignore[arg-type]
        assert message(partial(require_plan, "own", GRANTS, changed)) == expected + found


def test_flags_are_flags() -> None:
    """Whoever decides: the request, the granted set and the held set are one flag for each client and model."""
    expected = "policy = own: exchange 4: {} must be an array of flags [3, 3], not int64 [3, 3]"
    numbers: Any = HELD.astype(np.int64)
    budgets, storage = np.array([9, 9, 9]), np.array([1, 2, 3])
    assert message(lambda: require_requests("own", replace(REQUESTS, wanted=numbers))) == expected.format("the request")
    granted = message(lambda: require_held("own", REQUESTS, numbers, storage, budgets))
    assert granted == expected.format("the granted set")
    assert message(lambda: require_plan("own", GRANTS, replace(PLAN, held=numbers))) == expected.format("the held set")


def test_held_models_fit_the_budget_of_their_client() -> None:
    """The clients need 3, 4 and 5 bytes."""
    storage = np.array([1, 2, 3])
    require_held("own", REQUESTS, HELD, storage, np.array([3, 4, 5]))
    assert message(lambda: require_held("own", REQUESTS, HELD, storage, np.array([3, 3, 4]))) == (
        "policy = own: client 5, exchange 4: it holds 4 bytes, more than its budget of 3; correct the policy"
    )
    large = np.array([2**62, 2**62, 2**62])
    with pytest.raises(BrokenRule, match="more than its budget"):
        require_held("own", REQUESTS, HELD, large, np.array([2**62] * 3))


def test_probabilities_of_all_clients_or_of_each() -> None:
    require_probabilities("own", 4, CLIENTS, np.array([[0.2, 0.3, 0.5]]))
    require_probabilities("own", 4, CLIENTS, np.full((3, 3), 1 / 3))
    wrong = np.array([[0.5, 0.5, 0.0], [0.5, 0.4, 0.0], [0.5, 0.4, 0.0]])
    assert message(lambda: require_probabilities("own", 4, CLIENTS, wrong)) == (
        "policy = own: client 5, exchange 4: its prediction weights sum to 0.9, not to 1; correct the policy"
    )


def test_the_servers_step_is_finite() -> None:
    rules.require_steps("own", 4, np.array([1.0, -2.0]))
    assert message(lambda: rules.require_steps("own", 4, np.array([1.0, np.nan, np.inf]))) == (
        "policy = own: exchange 4: the server's step for model 1 is nan; keep it finite"
    )


def test_names_replace_numbers() -> None:
    with_model = BrokenRule("own", 3, 5, "rule", 1)
    assert str(with_model) == "policy = own: client 3, exchange 5: rule (model 1); correct the policy"
    assert (
        str(with_model.named("pump", ["a", "b"]))
        == "policy = own: client pump, exchange 5: rule (b); correct the policy"
    )
    without = BrokenRule("own", 3, 5, "rule")
    assert str(without) == "policy = own: client 3, exchange 5: rule; correct the policy"
    assert str(without.named("pump", [])) == "policy = own: client pump, exchange 5: rule; correct the policy"


@pytest.mark.parametrize("models", [1, 3, 200_000])
def test_many_clients_are_checked_in_blocks(models: int) -> None:
    """A block has at least one client; the last client of many is checked too."""
    clients = 3 if models > 10 else 100_000 // models + 3
    held = np.zeros((clients, models), dtype=np.bool_)
    held[:, 0] = True
    weights = held.astype(np.float64)
    weights[-1] *= 2
    found = message(lambda: require_probabilities("own", 0, np.arange(clients), weights))
    assert found.startswith(f"policy = own: client {clients - 1}, exchange 0: its prediction weights sum to 2")


def test_offsets_are_finite_numbers_of_each_client() -> None:
    """One number, or one per class; what is wrong is named."""
    for width in (1, 2):
        require_plan("own", GRANTS, replace(PLAN, offset=np.full((3, width), -1e300)))
    broken = np.zeros((3, 2))
    broken[1:, 1] = np.nan
    assert message(lambda: require_plan("own", GRANTS, replace(PLAN, offset=broken))) == (
        "policy = own: client 5, exchange 4: the offset of its predictions is not finite; correct the policy"
    )
    assert message(lambda: require_plan("own", GRANTS, replace(PLAN, offset=np.zeros((2, 2))))) == (
        "policy = own: exchange 4: the plan's offset must be an array of numbers [3, 2], not float64 [2, 2]"
    )


def test_plans_of_many_clients_are_checked_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients at a time, each of whom holds another model."""
    monkeypatch.setattr(rules, "_NUMBERS_IN_A_BLOCK", 6)
    for models in (3, 1):
        clients = np.arange(5) + 10
        held = np.arange(models) == (np.arange(5) % models)[:, None]
        weights = held.astype(np.float64)
        grants = Grants(4, clients, held, held, None, np.ones(5, dtype=np.bool_), 2, np.zeros(models, dtype=np.int64))
        require_plan("own", grants, Plan(held, weights, weights, weights))
        require_probabilities("own", 4, clients, np.full((5, models), 1 / models))
    held = np.arange(3) == (np.arange(5) % 3)[:, None]
    grants = Grants(4, clients, held, held, None, np.ones(5, dtype=np.bool_), 2, np.zeros(3, dtype=np.int64))
    weights = np.eye(3)[[0, 1, 2, 0, 0]]
    assert message(lambda: require_plan("own", grants, Plan(held, weights, weights, weights))) == (
        "policy = own: client 14, exchange 4: it predicts with a model that it does not hold (model 0); "
        "correct the policy"
    )


def test_sums_of_many_weights_in_single_precision_are_exact_enough() -> None:
    weights: Any = np.full((1, 300_000), 1 / 300_000, dtype=np.float32)
    require_probabilities("own", 4, CLIENTS[:1], weights)
