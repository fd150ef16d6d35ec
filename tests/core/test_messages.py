"""Messages as arrays, and messages of single clients."""

from __future__ import annotations

import numpy as np

from ofms.core.ledger import count_bytes
from ofms.core.messages import Catalogue, Grants, Reports, Requests


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
