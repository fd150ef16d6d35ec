"""Messages of a server: whatever arrives, the device uses it or refuses it, keeps predicting, and can be reopened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.device.device import Device
from ofms.device.errors import NotReady
from ofms.storage.envelope import decode
from tests.devices import budgets_for, label_samples
from tests.fuzz.amounts import inputs
from tests.fuzz.fleets import POLICIES, changed_message, fleet_of
from tests.fuzz.holding import refusing
from tests.fuzz.places import Place
from tests.local_fleet import LocalFleet

Stored = dict[str, tuple[LocalFleet, Path, list[bytes]]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """The store of a device that awaits its second grant, and the messages that may come: a welcome and that grant."""
    fleets: Stored = {}
    for policy in POLICIES:
        folder = Path(tmp_path_factory.mktemp("fleet"))
        fleet = fleet_of(folder, policy)
        for client, envelope in fleet.grant().items():
            fleet.coordinator.receive(client, envelope)
        fleet.coordinator.close()
        fleet.close()
        grant = fleet.coordinator.open()[0]
        fleets[policy] = fleet, folder / "0", [fleet.coordinator.welcome(0), grant]
    return fleets


@inputs("messages to a device")
@given(st.data())
def test_any_message_is_used_or_refused(place: Place, stored: Stored, data: st.DataObject) -> None:
    fleet, folder, messages = stored[data.draw(st.sampled_from(sorted(POLICIES)))]
    content = data.draw(changed_message(decode(data.draw(st.sampled_from(messages)))))
    # A device that joins, or one that holds models already.
    store, joined = place.fresh() / "store", data.draw(st.booleans())
    if joined:
        shutil.copytree(folder, store)
    budget = int(budgets_for(fleet.dictionary)[0])
    with Device(store, budget=budget, mail=False) as device:
        with refusing(store):
            device.receive(content)
        # The message after it still works, unless the device has joined another fleet by then.
        with refusing(store):
            device.receive(messages[1])
        with refusing(store, other=NotReady):
            use(device, fleet)
    with refusing(store, other=NotReady), Device(store, budget=budget, mail=False) as device:
        use(device, fleet)


def use(device: Device, fleet: LocalFleet) -> None:
    """Predict, learn and report."""
    label_samples(device, fleet.stream.x[0], fleet.stream.y[0], range(2))
    device.collect(now=True)
