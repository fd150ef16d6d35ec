"""A server that was killed in mid-exchange and opens the exchange again, with the same devices or with fewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.device.device import Device
from ofms.storage.envelope import Envelope, decode
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.devices import CLIENTS


class Killed:
    """Three devices in an exchange that a server opened before it was killed; each uploads in a group of its own."""

    def __init__(self, folder: Path) -> None:
        # A bandwidth that lets one of three devices upload at a time.
        self.folder = make_fleet(folder / "fleet", bandwidth="1668B", seed=0)
        self.fleet = DirectFleet(folder / "devices")
        persistence = PersistentCoordinator(Deployment(self.folder))
        self.fleet.join(persistence)
        persistence.save()
        self.grants = persistence.coordinator.open()
        assert persistence.coordinator.opened is not None
        self.uploads = {client: bool(own.uploads[0]) for client, own in persistence.coordinator.opened.grants.items()}
        self.groups = int(persistence.coordinator.opened.grants[0].groups)
        for client, content in self.grants.items():
            self.fleet.devices[client].receive(content)
        persistence.close()
        self.persistence = PersistentCoordinator(Deployment(self.folder))

    def see(self, client: int) -> Envelope:
        for step in range(2):
            answer = self.fleet.devices[client].predict(self.fleet.stream.x[client, step])
            self.fleet.devices[client].feedback(answer.id, float(self.fleet.stream.y[client, step]))
        return self.fleet.envelope(client)

    def reopen(self, clients: list[int]) -> dict[int, bytes]:
        grants = self.persistence.coordinator.open(clients)
        assert self.persistence.coordinator.opened is not None
        self.new_groups = int(self.persistence.coordinator.opened.grants[clients[0]].groups)
        return grants

    def close(self) -> None:
        self.persistence.close()
        self.fleet.close()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    made = Killed(tmp_path)
    yield made
    made.close()


def remaining(killed: Killed) -> tuple[int, list[int]]:
    """A device that uploads, and those that are there when the exchange is opened again: it and another."""
    uploading = next(client for client, uploads in killed.uploads.items() if uploads)
    other = next(client for client in range(CLIENTS) if client != uploading)
    return uploading, sorted([uploading, other])


def test_an_old_answer_does_not_count_where_the_groups_changed(killed: Killed) -> None:
    uploading, present = remaining(killed)
    old = killed.see(uploading)
    weights = list(old.values["weights"].values())
    assert max(weights) >= 3
    before = parameters(killed.persistence)
    killed.reopen(present)
    assert (killed.groups, killed.new_groups) == (3, 2)
    killed.persistence.receive(uploading, old)
    (line,) = killed.persistence.records.refusals
    assert "report refused: it answers another opening of exchange 0" in line
    assert uploading in killed.persistence.coordinator.requests, "its request counts"
    killed.persistence.close_exchange()
    assert parameters(killed.persistence) == before
    assert killed.persistence.records.counts[uploading].missed == 1


def test_a_device_that_had_answered_keeps_its_request_and_withdraws_its_report(killed: Killed) -> None:
    uploading, present = remaining(killed)
    old, device = killed.see(uploading), killed.fleet.devices[uploading]
    learnt = device._state.memory.state.policy.cumulative_losses.copy()
    grant = killed.reopen(present)[uploading]
    device.receive(grant)
    new = killed.fleet.envelope(uploading)
    assert (new.values["exchange"], new.values["opening"]) == (1, decode(grant).values["opening"])
    assert old.part("report")
    assert old.part("delta")
    assert set(new.arrays) == {f"request.{name}" for name in old.part("request")}
    assert (device._state.memory.state.policy.cumulative_losses == learnt).all(), "what it learnt stays"
    killed.persistence.receive(uploading, new)
    killed.persistence.close_exchange()
    assert killed.persistence.records.refusals == []
    device.receive(killed.persistence.coordinator.open([uploading])[uploading])
    assert device.exchange == 1
    device.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert again.exchange == 1


def test_a_device_that_had_not_answered_goes_on_under_the_new_grant(killed: Killed) -> None:
    uploading, present = remaining(killed)
    device = killed.fleet.devices[uploading]
    answer = device.predict(killed.fleet.stream.x[uploading, 0])
    device.feedback(answer.id, float(killed.fleet.stream.y[uploading, 0]))
    held, before = device.holding, parameters(killed.persistence)
    for client, content in killed.reopen(present).items():
        killed.fleet.devices[client].receive(content)
    assert device.holding == held
    assert device._state.memory.labelled == 1, "the label that came before counts"
    answer = device.predict(killed.fleet.stream.x[uploading, 1])
    device.feedback(answer.id, float(killed.fleet.stream.y[uploading, 1]))
    opened = killed.persistence.coordinator.opened
    assert opened is not None
    for client in present:
        envelope = killed.fleet.envelope(client) if client == uploading else killed.see(client)
        killed.persistence.receive(client, envelope)
        groups, plan = killed.new_groups, killed.fleet.devices[client]._state.memory.plans[0]
        expected = groups * (plan.held / plan.inclusion) * opened.grants[client].uploads[:, None]
        assert plan.update_weight == pytest.approx(expected), "weights of this opening"
    assert killed.persistence.records.refusals == []
    killed.persistence.close_exchange()
    assert parameters(killed.persistence) != before


def test_answers_count_where_the_same_exchange_is_opened_for_the_same_devices(killed: Killed) -> None:
    """Every draw is a function of seed, exchange and device, so the same devices get the same grants."""
    answers = [killed.see(client) for client in range(CLIENTS)]
    assert killed.reopen(list(range(CLIENTS))) == killed.grants
    for client, content in killed.grants.items():
        killed.fleet.devices[client].receive(content)
        killed.persistence.receive(client, answers[client])
    killed.persistence.close_exchange()
    assert killed.persistence.records.refusals == []
    assert [counts.missed for counts in killed.persistence.records.counts] == [0] * CLIENTS
