"""Slots of models that come and go, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.core.messages import Catalogue, Grants, Plan, Reports
from ofms.policies.changes import ALL_MODELS, Change, Slots, change_between, padded
from ofms.policies.observations import Recent

# Of four slots, the third and the first are in use, in this order.
SOME = Slots(4, np.array([2, 0]))
WHOLE = Catalogue(
    ("a", "b", "c", "d"), np.array([10, 20, 30, 40]), np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8]), "revision"
)
NUMBERS = np.arange(8.0).reshape(2, 4)
FLAGS = NUMBERS > 3


def test_models_in_their_own_order_need_no_places() -> None:
    assert Slots.of(3, np.arange(3)).places is None
    assert Slots.of(3, np.arange(3)).used.tolist() == [0, 1, 2]
    places = np.array([1, 0])
    assert Slots.of(2, places).places is places
    assert Slots.of(3, np.arange(2)).used.tolist() == [0, 1]
    wider = SOME.within(7)
    assert (wider.count, wider.places) == (7, SOME.places)


def test_values_by_slot_and_by_model_in_use() -> None:
    assert SOME.narrow(NUMBERS).tolist() == [[2, 0], [6, 4]]
    wide = SOME.widen(np.array([[1, 2], [3, 4]], dtype=np.int32), fill=-1)
    assert (wide.tolist(), wide.dtype.name) == ([[2, -1, 1, -1], [4, -1, 3, -1]], "int32")
    assert SOME.widen(np.array([5.0, 6.0])).tolist() == [6, 0, 5, 0]
    assert SOME.widen(np.ones((1, 3, 2), dtype=np.bool_)).shape == (1, 3, 4)
    assert ALL_MODELS.narrow(NUMBERS) is NUMBERS
    assert ALL_MODELS.widen(NUMBERS) is NUMBERS


def test_the_catalogue_of_models_in_use() -> None:
    some = SOME.catalogue(WHOLE)
    assert (some.names, some.revision) == (("c", "a"), "revision")
    assert [each.tolist() for each in (some.storage, some.upload, some.version)] == [[30, 10], [3, 1], [7, 5]]
    assert ALL_MODELS.catalogue(WHOLE) is WHOLE


@pytest.mark.parametrize("weights", [None, NUMBERS])
def test_grants_of_models_in_use(weights: np.ndarray | None) -> None:
    grants = Grants(3, np.arange(2), FLAGS, ~FLAGS, weights, np.array([True, False]), 2, WHOLE.version)
    some = SOME.narrow_grants(grants)
    assert (some.held.tolist(), some.sent.tolist()) == ([[False, False], [True, True]], [[True, True], [False, False]])
    assert (some.version.tolist(), some.uploads.tolist(), some.groups, some.exchange) == ([7, 5], [True, False], 2, 3)
    assert (some.prediction_weights is None) == (weights is None)
    if some.prediction_weights is not None:
        assert some.prediction_weights.tolist() == [[2, 0], [6, 4]]
    assert ALL_MODELS.narrow_grants(grants) is grants


@pytest.mark.parametrize("losses", [None, NUMBERS])
@pytest.mark.parametrize("left_out", [None, ~FLAGS])
def test_reports_on_models_in_use(losses: np.ndarray | None, left_out: np.ndarray | None) -> None:
    reports = Reports(3, np.arange(2), losses, FLAGS, left_out)
    some = SOME.narrow_reports(reports)
    assert (some.exchange, some.updated.tolist()) == (3, [[False, False], [True, True]])
    assert (some.losses is None, some.left_out is None) == (losses is None, left_out is None)
    if some.losses is not None:
        assert some.losses.tolist() == [[2, 0], [6, 4]]
    if some.left_out is not None:
        assert some.left_out.tolist() == [[True, True], [False, False]]
    assert ALL_MODELS.narrow_reports(reports) is reports


def test_samples_and_plans_of_models_in_use() -> None:
    recent = Recent(np.arange(16.0).reshape(2, 2, 4, 1), np.zeros((2, 2)), np.zeros((2, 2), dtype=np.int64))
    some = SOME.narrow_recent(recent)
    assert some.outputs[..., 0].tolist() == [[[2, 0], [6, 4]], [[10, 8], [14, 12]]]
    assert (some.targets is recent.targets, ALL_MODELS.narrow_recent(recent) is recent) == (True, True)
    plan = Plan(FLAGS, NUMBERS, NUMBERS + 1, NUMBERS + 2)
    narrow = SOME.narrow_plan(plan)
    assert (narrow.held.tolist(), narrow.update_weight.tolist()) == ([[False, False], [True, True]], [[4, 2], [8, 6]])
    assert SOME.widen_plan(narrow).prediction_weights.tolist() == [[0, 0, 2, 0], [4, 0, 6, 0]]
    assert ALL_MODELS.narrow_plan(plan) is plan
    assert ALL_MODELS.widen_plan(plan) is plan


def test_what_changed_between_two_sets_of_models() -> None:
    """From slots 2 and 0 to slots 0, 3 and 2; then with a model that went back, and with nothing changed."""
    budgets = np.array([50, 60])
    change = change_between(SOME, Slots(4, np.array([0, 3, 2])), WHOLE, budgets)
    assert (change.kept.tolist(), change.same_models, change.catalogue.names) == ([1, -1, 0], False, ("a", "d", "c"))
    assert change.budgets is budgets
    assert change.carried(np.array([[7.0, 8.0]]), fill=-2).tolist() == [[8, -2, 7]]
    whole = change.carried(np.array([[1, 2]], dtype=np.int32), -1)
    assert (whole.tolist(), whole.dtype.name) == ([[2, -1, 1]], "int32")
    back = change_between(SOME, SOME, WHOLE, budgets, renewed=[0])
    assert (back.kept.tolist(), back.same_models) == ([0, -1], False)
    same = change_between(SOME, SOME, WHOLE, budgets)
    assert (same.kept.tolist(), same.same_models) == ([0, 1], True)
    turned = change_between(SOME, Slots(4, np.array([0, 2])), WHOLE, budgets)
    assert (turned.kept.tolist(), turned.same_models) == ([1, 0], False)
    everything = change_between(Slots(2), ALL_MODELS, WHOLE, budgets)
    assert (everything.kept.tolist(), everything.same_models) == ([0, 1, -1, -1], False)
    assert isinstance(everything, Change)


def test_further_slots_at_the_end() -> None:
    flags = np.ones((2, 1), dtype=np.bool_)
    wide = padded(flags, 3, 1, 0)
    assert (wide.tolist(), wide.dtype.name) == ([[True, False, False]] * 2, "bool")
    assert padded(np.array([4, 5]), 3, 0, -1).tolist() == [4, 5, -1]
    assert np.isnan(padded(np.zeros((1, 2, 1, 2), dtype=np.float32), 2, 2, np.nan)[0, :, 1]).all()
    assert padded(flags, 1, 1, 0) is flags
