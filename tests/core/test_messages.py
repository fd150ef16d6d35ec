"""Messages as arrays, and messages of single clients."""

from __future__ import annotations

import numpy as np

from ofms.core.messages import Grants, Reports, Requests


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
