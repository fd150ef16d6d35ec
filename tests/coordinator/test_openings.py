"""An exchange opened again after its server was killed, with the same devices or with fewer."""

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


class InterruptedExchange:
    """An exchange of three devices whose server was killed after opening it; each device is a group of its own."""

    def __init__(self, folder: Path) -> None:
        # Enough bandwidth for one of the three devices at a time.
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

    def answer(self, client: int) -> Envelope:
        """Label the samples of the exchange on one device; its answer."""
        self.fleet.label(client, range(2))
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
def interrupted(tmp_path: Path) -> Iterator[InterruptedExchange]:
    made = InterruptedExchange(tmp_path)
    yield made
    made.close()


def remaining(interrupted: InterruptedExchange) -> tuple[int, list[int]]:
    """A device that uploads, and the devices present when the exchange is opened again: this one and another."""
    uploading = next(client for client, uploads in interrupted.uploads.items() if uploads)
    other = next(client for client in range(CLIENTS) if client != uploading)
    return uploading, sorted([uploading, other])


def test_an_answer_to_an_earlier_opening_does_not_count_when_the_groups_changed(
    interrupted: InterruptedExchange,
) -> None:
    uploading, present = remaining(interrupted)
    old = interrupted.answer(uploading)
    weights = list(old.values["weights"].values())
    assert max(weights) >= 3
    before = parameters(interrupted.persistence)
    interrupted.reopen(present)
    assert (interrupted.groups, interrupted.new_groups) == (3, 2)
    interrupted.persistence.receive(uploading, old)
    (line,) = interrupted.persistence.records.refusals
    assert "report rejected: it answers another opening of exchange 0" in line
    assert uploading in interrupted.persistence.coordinator.requests, "its request counts"
    interrupted.persistence.close_exchange()
    assert parameters(interrupted.persistence) == before
    assert interrupted.persistence.records.counts[uploading].missed == 1


def test_a_device_that_had_answered_repeats_its_request_without_its_report(interrupted: InterruptedExchange) -> None:
    uploading, present = remaining(interrupted)
    old, device = interrupted.answer(uploading), interrupted.fleet.devices[uploading]
    learnt = device._state.memory.state.policy.cumulative_losses.copy()
    grant = interrupted.reopen(present)[uploading]
    device.receive(grant)
    new = interrupted.fleet.envelope(uploading)
    assert (new.values["exchange"], new.values["opening"]) == (1, decode(grant).values["opening"])
    assert old.part("report")
    assert old.part("delta")
    assert set(new.arrays) == {f"request.{name}" for name in old.part("request")}
    assert (device._state.memory.state.policy.cumulative_losses == learnt).all(), "what it learnt is kept"
    interrupted.persistence.receive(uploading, new)
    interrupted.persistence.close_exchange()
    assert interrupted.persistence.records.refusals == []
    device.receive(interrupted.persistence.coordinator.open([uploading])[uploading])
    assert device.exchange == 1
    device.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert again.exchange == 1


def test_a_device_that_had_not_answered_continues_under_the_new_grant(interrupted: InterruptedExchange) -> None:
    uploading, present = remaining(interrupted)
    device = interrupted.fleet.devices[uploading]
    interrupted.fleet.label(uploading, [0])
    held, before = device.holding, parameters(interrupted.persistence)
    for client, content in interrupted.reopen(present).items():
        interrupted.fleet.devices[client].receive(content)
    assert device.holding == held
    assert device._state.memory.labelled == 1, "the earlier label counts"
    interrupted.fleet.label(uploading, [1])
    opened = interrupted.persistence.coordinator.opened
    assert opened is not None
    for client in present:
        envelope = interrupted.fleet.envelope(client) if client == uploading else interrupted.answer(client)
        interrupted.persistence.receive(client, envelope)
        groups, plan = interrupted.new_groups, interrupted.fleet.devices[client]._state.memory.plans[0]
        expected = groups * (plan.held / plan.inclusion) * opened.grants[client].uploads[:, None]
        assert plan.update_weight == pytest.approx(expected), "weights of this opening"
    assert interrupted.persistence.records.refusals == []
    interrupted.persistence.close_exchange()
    assert parameters(interrupted.persistence) != before


def test_answers_count_when_the_exchange_is_opened_again_for_the_same_devices(interrupted: InterruptedExchange) -> None:
    """Every draw is a function of seed, exchange and device, so the same devices get the same grants."""
    answers = [interrupted.answer(client) for client in range(CLIENTS)]
    assert interrupted.reopen(list(range(CLIENTS))) == interrupted.grants
    for client, content in interrupted.grants.items():
        interrupted.fleet.devices[client].receive(content)
        interrupted.persistence.receive(client, answers[client])
    interrupted.persistence.close_exchange()
    assert interrupted.persistence.records.refusals == []
    assert [counts.missed for counts in interrupted.persistence.records.counts] == [0] * CLIENTS
