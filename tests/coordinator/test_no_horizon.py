"""A fleet without a horizon runs until it is stopped, and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ofms
from ofms.coordinator.deployment import Deployment, read_config, write_config
from ofms.coordinator.files import SERVER
from ofms.coordinator.keys import add_device, make_deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.status import read_status, status_text
from ofms.core.schedule import Schedule
from ofms.device.device import Device
from ofms.storage.envelope import decode
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.devices import label_samples
from tests.local_fleet import INTERVAL, LocalFleet
from tests.scheduled_fleet import ScheduledFleet


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[ScheduledFleet]:
    made = ScheduledFleet(tmp_path, rounds=None)
    yield made
    made.close()


def test_a_fleet_runs_until_it_is_stopped_and_resumes(endless: ScheduledFleet) -> None:
    endless.run_for(20)
    stopped = endless.persistence.coordinator.exchange
    assert stopped > 6, "more exchanges than the devices' streams are long"
    assert not endless.persistence.coordinator.finished
    assert endless.persistence.records.refusals == []
    endless.restart()
    assert endless.persistence.coordinator.exchange == stopped
    endless.run_for(10)
    assert endless.persistence.coordinator.exchange > stopped
    assert endless.missed == [0] * 3
    assert endless.persistence.records.refusals == []
    assert f"the server resumes at exchange {stopped}" in endless.events
    assert "horizon" not in endless.events


def test_its_status_names_no_last_exchange(endless: ScheduledFleet) -> None:
    endless.run_for(5)
    exchange = endless.persistence.coordinator.exchange
    status = read_status(endless.folder)
    assert (status["exchange"], status["exchanges"], status["finished"]) == (exchange, None, False)
    assert status_text(status).startswith(f"ofms-ft, running: exchange {exchange}, ")


def test_its_exchanges_are_those_of_a_fleet_with_a_horizon(tmp_path: Path) -> None:
    found = []
    for rounds in (12, None):
        persistence = PersistentCoordinator(Deployment(make_fleet(tmp_path / f"fleet-{rounds}", rounds=rounds)))
        fleet = DirectFleet(tmp_path / f"devices-{rounds}")
        fleet.join(persistence)
        for _ in range(6):
            assert not persistence.coordinator.finished
            fleet.exchange(persistence)
        found.append((parameters(persistence), persistence.coordinator.version.tolist()))
        assert persistence.coordinator.finished == (rounds is not None)
        fleet.close()
        persistence.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("before", "after"), [(12, None), (None, 12)])
def test_a_horizon_cannot_be_added_or_removed_later(before: int | None, after: int | None, tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet", rounds=before)
    persistence = PersistentCoordinator(Deployment(folder))
    persistence.save()
    persistence.close()
    config = read_config(folder)
    config.rounds = after
    write_config(folder, config)
    with pytest.raises(ofms.InvalidInput, match="another dictionary, policy, horizon or seed"):
        PersistentCoordinator(Deployment(folder))
    config.rounds = before
    write_config(folder, config)
    PersistentCoordinator(Deployment(folder)).close()


def test_a_device_reports_after_every_interval_without_end(tmp_path: Path) -> None:
    local = LocalFleet(tmp_path, rounds=None)
    assert decode(local.coordinator.welcome(0)).values["rounds"] is None
    for _ in range(8):
        for client, envelope in local.grant().items():
            assert local.coordinator.receive(client, envelope) == []
        local.coordinator.close()
    store, budget = local.devices[0].store, local.devices[0].budget
    local.close()
    with Device(store, budget=budget, mail=False) as device:
        assert device._state.held_models is not None
        membership = device._state.held_models.membership
        assert membership.schedule == Schedule(None, INTERVAL)
        assert [membership.samples_in(exchange) for exchange in (0, 20, 10**9)] == [INTERVAL] * 3
        device.receive(local.coordinator.open([0])[0])
        label_samples(device, local.stream.x[0], local.stream.y[0], range(INTERVAL - 1))
        assert not device.wants_exchange
        label_samples(device, local.stream.x[0], local.stream.y[0], [0])
        assert device.wants_exchange


def test_a_policy_that_needs_a_horizon_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    models = make_fleet(tmp_path / "fleet") / "models"
    with pytest.raises(ofms.InvalidInput, match="learning_rate = tuned: it depends on the horizon T; give rounds"):
        make_deployment(tmp_path / "new", "127.0.0.1:9092", models, policy="ofms-ft")
    assert not (tmp_path / "new").exists()


def test_a_deployment_is_created_without_a_horizon(tmp_path: Path) -> None:
    models, folder = make_fleet(tmp_path / "fleet") / "models", tmp_path / "new"
    settings = {"learning_rate": 0.1, "fine_tuning_rate": 0.01}
    make_deployment(folder, "127.0.0.1:9092", models, policy="ofms-ft", settings=settings)
    config = read_config(folder)
    assert (config.rounds, config.policy, config.settings) == (None, "ofms-ft", settings)
    assert "# rounds = " in (folder / SERVER).read_text(), "the file says how to set one"
    add_device(folder, "device-0", "5", config.address)
    assert Deployment(folder).coordinator().fleet.schedule == Schedule(None, 20)
