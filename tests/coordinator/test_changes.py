"""A fleet that changes while it runs: the choices of the simulator with the same events, kills, and bad requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.compute import onnx_export
from ofms.compute.onnx_export import NotExported
from ofms.coordinator import graphs, operation
from ofms.coordinator.changes import Requested
from ofms.coordinator.commands import Command, give_command
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import ADDED, COMMANDS, EVENTS, GRAPHS
from ofms.coordinator.graphs import Graphs
from ofms.coordinator.keys import add_device, revoke_device
from ofms.coordinator.operation import request_change
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.status import read_status
from ofms.core.events import Event
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary, Model
from ofms.simulator.phases import Phases
from ofms.simulator.simulation import make_simulation
from tests.changing import deployed_setup
from tests.cli.commands import run
from tests.coordinator.changing_fleet import ChangingFleet
from tests.policy_settings import SETTINGS
from tests.scheduled_fleet import ScheduledFleet

NAMES = [name for name in SETTINGS if name != "fed-poe"]


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[ChangingFleet]:
    made = ChangingFleet(tmp_path, "late-hedge")
    yield made
    made.close()


@pytest.mark.parametrize("name", NAMES)
def test_devices_choose_as_in_the_simulator_with_the_same_events(name: str, tmp_path: Path) -> None:
    """A device joins and one is revoked; a model is added and one retired; a budget, the bandwidth, the interval."""
    fleet = ChangingFleet(tmp_path, name)
    largest = int(fleet.dictionary.catalogue().storage.max())
    fleet.run(2)
    fleet.join(3)
    request_change(fleet.folder, Requested(), models=fleet.further)
    fleet.run(2)
    request_change(fleet.folder, Requested(retire=["net0"], budget={"device-2": f"{2 * largest}B"}))
    fleet.run(1, kill=True)
    request_change(fleet.folder, Requested(bandwidth="300%"))
    revoke_device(fleet.folder, "device-1")
    fleet.run(2)
    events = fleet.persistence.beginning.events
    assert [event.exchange for event in events] == [2, 2, 4, 5, 5]
    assert fleet.persistence.records.refusals == []
    fleet.close()

    setup = deployed_setup(name, fleet.whole, fleet.stream, fleet.budgets, events, SETTINGS[name], interval=2)
    phases = Phases.of(setup, events)
    first = phases.first
    simulation = make_simulation(first.built, first.fleet, fleet.whole, fleet.stream, seed=5, phases=phases)
    for exchange in simulation.exchanges():
        if exchange.index == len(fleet.seen):
            break
        for client, (holding, weights) in fleet.seen[exchange.index].items():
            where = (name, exchange.index, client)
            assert np.flatnonzero(exchange.plan.held[client]).tolist() == holding, where
            simulated = exchange.plan.prediction_weights[client]
            assert simulated[: weights.size] == pytest.approx(weights, abs=1e-4), where


def test_an_event_survives_a_kill_at_any_moment(changing: ChangingFleet) -> None:
    changing.run(2)
    request_change(changing.folder, Requested(retire=["net1"]))
    changing.restart()  # Killed before the command was executed.
    assert changing.persistence.coordinator.setup.changed == 0
    assert changing.persistence.run_commands()
    setup = changing.persistence.coordinator.setup
    assert setup.places == (0, 2, 3, 4)
    changing.restart()  # Killed before any device was welcomed.
    again = changing.persistence.coordinator
    assert again.setup.places == setup.places
    assert again.requests == {}
    assert not changing.persistence.run_commands()
    changing.run(2, kill=True)
    assert changing.persistence.records.refusals == []
    assert all(1 not in holding for holding, _ in changing.seen[-1].values())


def test_a_command_is_executed_once(changing: ChangingFleet) -> None:
    changing.run(1)
    request_change(changing.folder, Requested(settings={"window": 6}))
    (path,) = (changing.folder / COMMANDS).glob("*.json")
    content = path.read_bytes()
    changing.persistence.run_commands()
    assert changing.persistence.coordinator.setup.changed == 1
    path.write_bytes(content)  # As if it had been killed before it removed the file.
    changing.restart()
    changing.persistence.run_commands()
    assert changing.persistence.coordinator.setup.changed == 1


def test_a_device_that_was_away_during_events_returns(changing: ChangingFleet) -> None:
    changing.run(2)
    learnt = changing.devices[0]._state.memory.state.policy.hedge
    changing.away = {0}
    request_change(changing.folder, Requested(), models=changing.further)
    changing.run(1)
    request_change(changing.folder, Requested(retire=["net2"]))
    changing.run(1)
    changing.away = set()
    changing.run(2)
    assert 0 in changing.seen[-1]
    after = changing.devices[0]._state.memory.state.policy.hedge
    assert after.finished[0] >= learnt.finished[0] > 0 or learnt.finished[0] == 0
    assert changing.persistence.records.refusals == []
    assert all(2 not in holding for holding, _ in changing.seen[-1].values())


def test_a_device_keeps_predicting_between_a_change_and_its_grant_and_over_a_restart(changing: ChangingFleet) -> None:
    changing.run(2)
    device = changing.devices[0]
    predicting = device.predicting
    names = [changing.dictionary.models[model].name for model in predicting][:1]
    request_change(changing.folder, Requested(retire=names))
    changing.persistence.run_commands()
    device.receive(changing.persistence.coordinator.welcome(0))
    waiting = device.predict(changing.stream.x[0, 0])
    assert device.predicting == predicting
    device.close()
    changing.devices[0] = Device(device.store, budget=device.budget, mail=False)
    assert changing.devices[0].feedback(waiting.id, float(changing.stream.y[0, 0]))
    changing.run(2)
    assert changing.persistence.records.refusals == []


def test_another_policy_and_interval_are_in_force_from_the_next_exchange(changing: ChangingFleet) -> None:
    changing.run(2)
    request_change(changing.folder, Requested(interval=3, policy="follow-the-leader", deadline=7.0))
    changing.run(2)
    assert changing.persistence.deadline == 7.0
    coordinator = changing.persistence.coordinator
    assert (coordinator.name, coordinator.fleet.schedule.span(3)) == ("follow-the-leader", (7, 10))
    assert all(device.exchange == 3 for device in changing.devices[:3])
    changing.restart()
    assert changing.persistence.coordinator.name == "follow-the-leader"
    assert changing.persistence.deadline == 7.0
    changing.persistence.write_status()
    status = read_status(changing.folder)
    assert [status[name] for name in ("policy", "deadline", "interval", "aggregation")] == [
        "follow-the-leader",
        7.0,
        3,
        "sum",
    ]
    assert status["settings"] == coordinator.settings


def test_a_server_says_which_values_of_its_file_are_not_in_force(changing: ChangingFleet) -> None:
    changing.persistence.log_overridden()
    request_change(changing.folder, Requested(deadline=7.0, bandwidth="300%"))
    changing.run(1)
    changing.restart()
    changing.persistence.log_overridden()
    found = [line for line in (changing.folder / EVENTS).read_text().splitlines() if "server.toml has" in line]
    assert [line.partition("Z ")[2] for line in found] == [
        "server.toml has deadline = 60.0, but a change of the running fleet is in force: 7.0",
        "server.toml has bandwidth = 100%, but a change of the running fleet is in force: 300%",
    ]


def test_a_policy_that_needs_a_horizon_runs_without_one_by_doubling(tmp_path: Path) -> None:
    given: dict[str, Any] = {"learning_rate": "tuned", "fine_tuning_rate": "0.05/sqrt(T)"}
    fleet = ChangingFleet(tmp_path, "ofms-ft", rounds=None, doubling=4, settings=given)
    fleet.run(7)
    restarts = [(event.exchange, event.rounds) for event in fleet.persistence.beginning.events]
    assert restarts == [(2, 8), (6, 16)]
    assert fleet.persistence.coordinator.policy.local is not None
    assert fleet.persistence.coordinator.policy.local.rate == pytest.approx(0.05 / 4)
    assert fleet.persistence.records.refusals == []
    fleet.close()


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"retire": ["netX"]}, "retire = netX: no such model is in use; name one of net0, net1"),
        ({"retire": ["net0", "net1", "net2", "net3"]}, "at least 2 models; add another one first"),
        ({"budget": {"device-9": "5"}}, "budget = device-9: no such device; the devices are: device-0"),
        ({"budget": {"device-0": "10B"}}, "budget = device-0 has 10 bytes: it must hold the two largest models"),
        ({"policy": "nothing"}, "policy = nothing: use one of"),
        ({"settings": {"speed": 3}}, "set = speed: late-hedge has"),
        ({"interval": 0}, "interval = 0: give at least 1"),
        ({"deadline": -1.0}, "deadline = -1.0: give a number above 0"),
        ({"bandwidth": "fast"}, "bandwidth = fast: write '50%'"),
        ({}, "it changes nothing"),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_written(
    requested: dict[str, Any], message: str, changing: ChangingFleet
) -> None:
    with pytest.raises(ofms.InvalidInput) as caught:
        request_change(changing.folder, Requested(**requested))
    assert message in str(caught.value)
    assert not (changing.folder / COMMANDS).exists()


def test_a_bad_model_is_refused_before_anything_is_written(changing: ChangingFleet) -> None:
    for folder, names, message in (
        (changing.folder / "models", ["net1"], "name = net1: models: two models have this name"),
        (changing.further, ["netX"], "model = netX: .* has net5"),
    ):
        with pytest.raises(ofms.InvalidInput, match=message):
            request_change(changing.folder, Requested(), models=folder, names=names)
    assert not (changing.folder / ADDED).exists()


def test_devices_without_room_for_a_model_are_named(changing: ChangingFleet) -> None:
    smallest = min(model.storage for model in changing.whole.models)
    with pytest.raises(
        ofms.InvalidInput, match=f"budget = device-1 has {smallest} bytes: it must hold the two largest"
    ):
        request_change(changing.folder, Requested(budget={"device-1": f"{smallest}B"}))
    assert not (changing.folder / COMMANDS).exists()


def other_model(changing: ChangingFleet, folder: Path) -> Path:
    """A folder with another model of the name of the one that can be added."""
    model = changing.whole.models[5]
    tensors = {name: tensor + 1 for name, tensor in model.tensors.items()}
    Dictionary("regression", (replace(model, tensors=tensors),)).write(folder)
    return folder


def added_model(changing: ChangingFleet) -> dict[str, list[float]]:
    tensors = changing.persistence.coordinator.dictionary.models[5].tensors
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def test_a_second_model_of_a_name_that_waits_to_be_added_is_refused(changing: ChangingFleet, tmp_path: Path) -> None:
    request_change(changing.folder, Requested(), models=changing.further)
    kept = [*(changing.folder / ADDED).iterdir()]
    with pytest.raises(
        ofms.InvalidInput, match="model = net5: an earlier command that adds a model of this name waits"
    ):
        request_change(changing.folder, Requested(), models=other_model(changing, tmp_path / "other"))
    assert [*(changing.folder / ADDED).iterdir()] == kept
    assert len([*(changing.folder / COMMANDS).iterdir()]) == 1


@pytest.mark.parametrize("executed", [False, True])
def test_of_two_commands_at_once_that_add_a_name_the_first_counts(
    executed: bool, changing: ChangingFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may execute the first one while the second is being given."""
    other = other_model(changing, tmp_path / "other")
    request_change(changing.folder, Requested(), models=changing.further)

    def waiting(folder: Path) -> list[Command]:
        if executed:
            assert changing.persistence.run_commands()
        return []

    monkeypatch.setattr(operation, "waiting_commands", waiting)
    request_change(changing.folder, Requested(), models=other)
    changing.persistence.run_commands()
    first = {name: tensor.flatten().tolist() for name, tensor in changing.whole.models[5].tensors.items()}
    assert added_model(changing) == first
    changing.restart()
    assert added_model(changing) == first
    assert [path.name for path in (changing.folder / ADDED).iterdir()] == ["net5"]
    changing.run(1)


def test_an_event_is_refused_in_an_open_exchange(changing: ChangingFleet) -> None:
    changing.run(1)
    changing.persistence.coordinator.open()
    with pytest.raises(ofms.InvalidInput, match="exchange = 1: it is open; change the fleet between exchanges"):
        changing.persistence.coordinator.apply(Event(exchange=1, retire=("net0",)))


def test_a_scheduled_server_admits_a_device_and_changes_its_models(tmp_path: Path) -> None:
    scheduled = ScheduledFleet(tmp_path, rounds=None)
    scheduled.clock.at(8.0, lambda: give_command(scheduled.folder, Command("change", change={"retire": ["net0"]})))
    scheduled.clock.at(14.0, lambda: add_device(scheduled.folder, "device-3", "2", "127.0.0.1:9092"))
    scheduled.clock.at(20.0, lambda: revoke_device(scheduled.folder, "device-1"))
    scheduled.run_for(40)
    coordinator = scheduled.persistence.coordinator
    assert coordinator.setup.places == (1, 2, 3, 4, 5)
    assert coordinator.setup.members == (0, 2, 3)
    assert scheduled.persistence.records.refusals == []
    for line in ("model net0 is retired", "device-3 joins", "device-1 leaves"):
        assert scheduled.events.count(line) == 1
    assert scheduled.attended[0] == coordinator.exchange
    assert max(map(len, (device.holding for device in scheduled.fleet.devices))) > 0
    assert all(0 not in device.holding for device in scheduled.fleet.devices)
    scheduled.close()


def test_graphs_are_made_of_the_models_in_use(changing: ChangingFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of models that were added before the deployment had graphs; the retired ones need none."""
    exported: list[list[str]] = []

    def export(folder: Path, dictionary: Dictionary, echo: object) -> list[Graphs]:
        exported.append([model.name for model in dictionary.models])
        return []

    monkeypatch.setattr(graphs, "export_missing", export)
    assert run("deploy", "keys", changing.folder, "--edge") == 0
    request_change(changing.folder, Requested(retire=["net1"]))
    request_change(changing.folder, Requested(), models=changing.further)
    changing.run(1)
    assert run("deploy", "keys", changing.folder, "--edge") == 0
    assert exported == [[f"net{model}" for model in range(5)], ["net0", "net2", "net3", "net4", "net5"]]


def test_an_exported_dictionary_has_the_models_in_use(changing: ChangingFleet, tmp_path: Path) -> None:
    request_change(changing.folder, Requested(retire=["net1"]))
    request_change(changing.folder, Requested(), models=changing.further)
    changing.run(2)
    changing.persistence.write_dictionary(tmp_path / "exported")
    names = [model.name for model in Dictionary.read(tmp_path / "exported").models]
    assert names == ["net0", "net2", "net3", "net4", "net5"]
    assert PersistentCoordinator(Deployment(changing.folder), read_only=True).coordinator.setup.places == (
        0,
        2,
        3,
        4,
        5,
    )


def test_a_model_that_needs_pytorch_is_refused_with_what_can_be_done(
    changing: ChangingFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (changing.folder / GRAPHS).mkdir()

    def not_exported(model: Model, task: str) -> dict[str, bytes]:
        raise NotExported("a branch")

    monkeypatch.setattr(onnx_export, "require_exporter", lambda: None)
    monkeypatch.setattr(onnx_export, "export_graphs", not_exported)
    with pytest.raises(ofms.InvalidInput, match=r"edge = net5: .* devices of this fleet may have none") as caught:
        request_change(changing.folder, Requested(), models=changing.further)
    assert "--edge" not in str(caught.value)
    assert not (changing.folder / ADDED).exists()
