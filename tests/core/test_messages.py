"""Messages as arrays, and messages of single clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofms.core.ledger import count_bytes, human_bytes
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests


def test_messages_are_split_by_client_and_stacked_again() -> None:
    random = np.random.default_rng(0)
    flags = random.random((4, 3)) < 0.5
    whole = Grants(7, np.arange(4), flags, ~flags, None, flags[:, 0], 2, np.array([1, 0, 3]))
    parts = [whole.rows(slice(index, index + 1)) for index in range(4)]
    again = Grants.stack([Grants.from_arrays(part.to_arrays()) for part in parts])
    assert (again.exchange, again.groups, again.prediction_weights) == (7, 2, None)
    for name in ("client", "held", "sent", "uploads", "version"):
        assert getattr(again, name).tolist() == getattr(whole, name).tolist()
        assert getattr(again, name).dtype == getattr(whole, name).dtype


def test_requests_and_reports_keep_their_fields() -> None:
    requests = Requests(3, np.array([5]), np.array([[True, False]]), np.array([[-1, 2]]))
    assert Requests.from_arrays(requests.to_arrays()).to_arrays().keys() == {"exchange", "client", "wanted", "holding"}
    reports = Reports(3, np.array([5]), None, np.array([[True, False]]))
    assert Reports.from_arrays(reports.to_arrays()).losses is None


def test_bytes_of_models_updates_and_reported_losses() -> None:
    """The first client gets 40 + 7 bytes, and uploads an update of 10 and two losses of 8; models have two copies."""
    catalogue = Catalogue(("a", "b", "c"), np.array([40, 60, 7]), np.array([10, 60, 7]), np.zeros(3, dtype=np.int64))
    held = np.array([[True, False, True], [True, True, False]])
    sent = np.array([[True, False, True], [False, False, False]])
    grants = Grants(0, np.arange(2), held, sent, None, np.array([True, False]), 2, catalogue.version)
    losses = np.array([[0.5, np.nan, 0.2], [np.nan, np.nan, np.nan]])
    reports = Reports(0, np.arange(2), losses, np.array([[True, False, False], [False, False, False]]))
    traffic = count_bytes(catalogue, grants, reports, copies=2)
    assert traffic.down.tolist() == [47, 0]
    assert traffic.up.tolist() == [10 + 2 * 8, 0]
    assert traffic.held.tolist() == [2 * 47, 2 * 100]


def test_updates_that_are_not_finite_are_left_out_by_hand() -> None:
    """Three models of two clients: of the second one, no update is finite; of the third, one is."""
    updated = np.array([[True, True, True], [True, False, True]])
    reports = Reports(3, np.array([4, 5]), None, updated)
    assert reports.lost().tolist() == [False, False, False]
    left_out = np.array([[False, True, False], [False, False, True]])
    fewer = reports.without_updates(left_out)
    assert fewer.updated.tolist() == [[True, False, True], [True, False, False]]
    assert (fewer.left_out is left_out, fewer.client is reports.client, fewer.exchange) == (True, True, 3)
    assert fewer.lost().tolist() == [False, True, False]
    assert reports.without_updates(np.zeros((2, 3), dtype=np.bool_)) is reports


def test_a_plan_keeps_its_offset() -> None:
    """Offsets are by client, not by model."""
    numbers = np.arange(6.0).reshape(2, 3)
    plan = Plan(numbers > 2, numbers, numbers + 1, numbers + 2, np.array([[7.0], [8.0]]))
    models = plan.for_models(lambda array: array[:, [2, 0]])
    assert models.prediction_weights.tolist() == [[2, 0], [5, 3]]
    assert models.offset is plan.offset
    clients = plan.for_clients(lambda array: array[[1]])
    assert (clients.update_weight.tolist(), clients.held.tolist()) == ([[5, 6, 7]], [[True, True, True]])
    assert clients.offset is not None
    assert clients.offset.tolist() == [[8]]
    assert replace(plan, offset=None).for_clients(lambda array: array[[1]]).offset is None


def test_plans_of_clients_with_and_without_an_offset_are_stacked() -> None:
    flags, numbers = np.array([[True, False]]), np.array([[1.0, 0.0]])
    without = Plan(flags, numbers, numbers, numbers)
    offset = replace(without, offset=np.array([[3.0, 4.0, 5.0]]))
    both = Plan.stack([without, offset, without])
    assert both.offset is not None
    assert both.offset.tolist() == [[0, 0, 0], [3, 4, 5], [0, 0, 0]]
    assert both.prediction_weights.tolist() == [[1, 0]] * 3
    assert Plan.stack([without, without]).offset is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2, "1.0 MiB"),
        (2.5 * 1024**3, "2.5 GiB"),
        (1024**4, "1.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_as_people_read_them(count: float, text: str) -> None:
    assert human_bytes(count) == text
