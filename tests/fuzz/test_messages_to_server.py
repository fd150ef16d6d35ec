"""Messages of a device: whatever it sends, the server counts it or refuses it, and closes the exchange."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ofms.coordinator.coordinator import Coordinator
from ofms.storage.envelope import Envelope, decode
from tests.fuzz.amounts import inputs
from tests.fuzz.fleets import POLICIES, changed_message, fleet_of
from tests.fuzz.holding import refusing, require_line
from tests.local_fleet import LocalFleet

Opened = dict[str, tuple[LocalFleet, dict[int, Envelope]]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Fleets in an open exchange, with the answers of all devices."""
    fleets: Opened = {}
    for policy in POLICIES:
        fleet = fleet_of(Path(tmp_path_factory.mktemp("fleet")), policy)
        for client, envelope in fleet.grant().items():
            fleet.coordinator.receive(client, envelope)
        fleet.coordinator.close()
        fleets[policy] = fleet, fleet.grant()
    yield fleets
    for fleet, _ in fleets.values():
        fleet.close()


@inputs("messages to the server")
@given(st.data())
def test_any_message_is_counted_or_refused(opened: Opened, data: st.DataObject) -> None:
    fleet, answers = opened[data.draw(st.sampled_from(sorted(POLICIES)))]
    client = data.draw(st.sampled_from(sorted(answers)))
    content = data.draw(changed_message(answers[client]))
    coordinator = _copied(fleet)
    with refusing():
        for line in coordinator.receive(client, decode(content)):
            require_line(line)
    for other, envelope in answers.items():
        if other != client:
            coordinator.receive(other, envelope)
    coordinator.close()
    for tensors in coordinator.tensors:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    # The request counts in the next exchange.
    coordinator.open()
    assert np.isfinite(coordinator.version).all()


def _copied(fleet: LocalFleet) -> Coordinator:
    """The coordinator, as it was before the message."""
    coordinator = copy.copy(fleet.coordinator)
    coordinator.tensors = [dict(each) for each in coordinator.tensors]
    coordinator.opened, coordinator.requests = copy.deepcopy(coordinator.opened), {}
    coordinator.momentum = copy.deepcopy(coordinator.momentum)
    coordinator._encoded = {}
    return coordinator
