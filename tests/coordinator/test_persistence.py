"""What a server keeps: checkpoints, earlier dictionaries, counts; two of it never share them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

import ofms
from ofms.coordinator.deployment import Deployment, ServerConfig, read_roster, write_config, write_roster
from ofms.coordinator.files import EVENTS, SERVER, STATE
from ofms.coordinator.keys import add_device, make_deployment, revoke_device
from ofms.coordinator.persistence import Command, PersistentCoordinator, give_command
from ofms.coordinator.status import read_status, status_text
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary
from ofms.storage.envelope import decode, encode
from tests.devices import CLIENTS, budgets_for, open_devices, problem

SETTINGS = {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "loss_bound": "raw"}


def make_fleet(folder: Path, **changes: Any) -> Path:
    """A deployment of the regression problem in which everybody uploads."""
    dictionary, _ = problem()
    dictionary.write(folder / "models")
    make_deployment(folder, "127.0.0.1:9092", folder / "models")
    config = ServerConfig(
        address="127.0.0.1:9092", models="models", rounds=12, interval=2, bandwidth="200%", seed=5, settings=SETTINGS
    )
    write_config(folder, msgspec.structs.replace(config, **changes))
    for client, budget in enumerate(budgets_for(dictionary).tolist()):
        add_device(folder, f"device-{client}", f"{budget}B", "127.0.0.1:9092")
    return folder


class Fleet:
    """Devices whose letters go straight to a keeper."""

    def __init__(self, folder: Path) -> None:
        dictionary, self.stream = problem()
        self.devices = open_devices(folder, dictionary)

    def join(self, keeper: PersistentCoordinator) -> None:
        for client, device in enumerate(self.devices):
            self._pass(device, keeper.welcome(client))
            keeper.receive(client, self.letter(client))

    def letter(self, client: int) -> Any:
        return decode(self.devices[client].collect() or b"")

    def exchange(self, keeper: PersistentCoordinator) -> None:
        first, stop = keeper.coordinator.fleet.schedule.span(keeper.coordinator.exchange)
        for client, letter in keeper.open(set(range(CLIENTS))).items():
            self._pass(self.devices[client], letter)
            for step in range(first, stop):
                answer = self.devices[client].predict(self.stream.x[client, step])
                self.devices[client].feedback(answer.id, float(self.stream.y[client, step]))
            keeper.receive(client, self.letter(client))
        keeper.close_exchange()

    def _pass(self, device: Device, letter: Any) -> None:
        device.receive(encode(letter))

    def close(self) -> None:
        for device in self.devices:
            device.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    made = Fleet(tmp_path / "devices")
    yield made
    made.close()


def parameters(keeper: PersistentCoordinator) -> list[dict[str, list[float]]]:
    return [{name: tensor.flatten().tolist() for name, tensor in each.items()} for each in keeper.coordinator.tensors]


def test_a_service_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path: Path, fleet: Fleet) -> None:
    folder = make_fleet(tmp_path / "one")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    for _ in range(4):
        fleet.exchange(keeper)
    keeper.close()
    other, again = Fleet(tmp_path / "others"), make_fleet(tmp_path / "two")
    for exchange in range(4):
        reopened = PersistentCoordinator(Deployment(again))
        if exchange == 0:
            other.join(reopened)
            reopened.save()
        assert reopened.coordinator.exchange == exchange
        other.exchange(reopened)
        # Another one opens the exchange and is gone before it is closed: nothing of it counts.
        reopened.open(set(range(CLIENTS)))
        reopened.close()
    last = PersistentCoordinator(Deployment(again))
    other.close()
    assert parameters(last) == parameters(keeper)
    assert last.coordinator.version.tolist() == keeper.coordinator.version.tolist()
    assert [counts.exchanges for counts in last.counts] == [4] * CLIENTS
    last.close()


def test_two_services_never_share_a_checkpoint(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    with pytest.raises(ofms.InvalidInput, match="another process is writing it"):
        PersistentCoordinator(Deployment(folder))
    PersistentCoordinator(Deployment(folder), look_only=True)
    keeper.close()
    PersistentCoordinator(Deployment(folder)).close()


def test_a_checkpoint_of_something_else_or_a_damaged_one_is_refused(tmp_path: Path, fleet: Fleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    fleet.exchange(keeper)
    keeper.close()
    config = (folder / SERVER).read_text()
    (folder / SERVER).write_text(config.replace("seed = 5", "seed = 6"))
    with pytest.raises(ofms.InvalidInput, match="another dictionary, policy, horizon or seed"):
        PersistentCoordinator(Deployment(folder))
    (folder / SERVER).write_text(config)
    checkpoint = folder / STATE / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ofms.InvalidInput, match="it is damaged"):
        PersistentCoordinator(Deployment(folder))


def test_freeze_and_rollback(tmp_path: Path, fleet: Fleet) -> None:
    folder = make_fleet(tmp_path / "fleet", keep=2)
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    seen = [parameters(keeper)]
    for _ in range(4):
        fleet.exchange(keeper)
        seen.append(parameters(keeper))
    assert [moment.exchange for moment in keeper.history] == [0, 3, 4]
    give_command(folder, Command("freeze"))
    give_command(folder, Command("rollback", 3))
    give_command(folder, Command("rollback", 2))
    give_command(folder, Command("dance"))
    keeper.run_commands()
    assert parameters(keeper) == seen[3]
    versions = keeper.coordinator.version.tolist()
    keeper.close()
    keeper = PersistentCoordinator(Deployment(folder))
    assert (parameters(keeper), keeper.coordinator.version.tolist(), keeper.coordinator.frozen) == (
        seen[3],
        versions,
        True,
    )
    events = (folder / EVENTS).read_text()
    assert "back where it was before exchange 3" in events
    assert "rollback = 2: there are [0, 3, 4]" in events
    assert "command = dance: use freeze, thaw or rollback" in events
    fleet.exchange(keeper)
    assert parameters(keeper) == seen[3], "frozen"
    for device in fleet.devices:
        assert device._held_models is not None
        for model in device.holding:
            assert device._memory.versions[model] == versions[model]
            for name, tensor in device._held_models.tensors[model].items():
                assert tensor.flatten().tolist() == seen[3][model][name], "devices got what was rolled back to"
    give_command(folder, Command("rollback", 0))
    keeper.run_commands()
    assert parameters(keeper) == seen[0]
    out = tmp_path / "exported"
    keeper.write_dictionary(out)
    for mine, first in zip(Dictionary.read(out).models, keeper.coordinator.dictionary.models, strict=True):
        assert all((mine.tensors[name] == first.tensors[name]).all() for name in first.tensors)
    keeper.close()
    files = len(list((folder / STATE / "models").glob("*")))
    assert files <= 6 * 3, "what no rollback can want is gone"


def test_status_says_what_went_over_the_wire(tmp_path: Path, fleet: Fleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    with pytest.raises(ofms.InvalidInput, match="has not run yet"):
        read_status(folder)
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    for client in range(CLIENTS):
        keeper.count(client, down=100 + client, up=10)
    fleet.exchange(keeper)
    keeper.refuse(1, "letter refused: it is a poem")
    keeper.save()
    status = read_status(folder)
    assert [device["bytes_down"] for device in status["devices"]] == [100, 101, 102]
    assert (status["bytes_down"], status["bytes_up"]) == (303, 30)
    assert status["running"]
    assert status["exchange"] == 1
    for client, device in enumerate(status["devices"]):
        assert device["held_bytes"] <= device["budget"]
        assert device["held_bytes"] == fleet.devices[client].held_bytes
    json.dumps(status)
    text = status_text(status)
    assert "ofms-ft, running: exchange 1 of 6" in text
    assert "exchange 1: device-1: letter refused: it is a poem" in text
    keeper.close()
    assert "stopped" in status_text(read_status(folder))


def test_a_server_that_was_killed_while_it_wrote_does_not_take_what_it_left(tmp_path: Path, fleet: Fleet) -> None:
    """Model files of an exchange that never counted have the names of those that will."""
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    fleet.exchange(keeper)
    keeper.close()
    for model, version in enumerate(keeper.coordinator.version.tolist()):
        left = folder / STATE / "models" / f"{model}-{version + 1}.safetensors"
        left.write_bytes(b"left behind by a server that was killed")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.exchange(keeper)
    expected = parameters(keeper)
    keeper.close()
    again = PersistentCoordinator(Deployment(folder))
    assert parameters(again) == expected
    again.close()


def test_a_deployment_has_one_name_from_its_first_start_on(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    keeper.save()
    keeper.close()
    again = PersistentCoordinator(Deployment(folder))
    assert again.coordinator.deployment == keeper.coordinator.deployment
    again.close()


def test_a_revoked_device_counts_no_more(tmp_path: Path, fleet: Fleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    for client, letter in keeper.open(set(range(CLIENTS))).items():
        fleet.devices[client].receive(encode(letter))
        for step in range(2):
            answer = fleet.devices[client].predict(fleet.stream.x[client, step])
            fleet.devices[client].feedback(answer.id, float(fleet.stream.y[client, step]))
        keeper.receive(client, fleet.letter(client))
    keeper.revoke(1)
    assert keeper.coordinator.opened is not None
    assert sorted(keeper.coordinator.opened.answers) == [0, 2]
    assert sorted(keeper.coordinator.requests) == [0, 2]
    keeper.close_exchange()
    assert keeper.counts[1].last_exchange == -1
    keeper.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 14}, "policy, horizon or seed"),
        ({"interval": 3}, "policy, horizon or seed"),
        ({"settings": SETTINGS | {"window": 2}}, "policy, horizon or seed"),
        ({"bandwidth": "150%", "deadline": 7, "largest_update": 2.0}, None),
    ],
)
def test_what_may_change_at_a_restart(
    change: dict[str, Any], message: str | None, tmp_path: Path, fleet: Fleet
) -> None:
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    fleet.exchange(keeper)
    keeper.close()
    values = msgspec.to_builtins(Deployment(folder).config) | change
    (folder / SERVER).write_text(tomli_w.dumps(values))
    if message is not None:
        with pytest.raises(ofms.InvalidInput, match=message):
            PersistentCoordinator(Deployment(folder))
        return
    keeper = PersistentCoordinator(Deployment(folder))
    assert (
        keeper.coordinator.session.bandwidth
        == keeper.coordinator.fleet.bandwidth
        == int(1.5 * keeper.coordinator.fleet.budgets.sum())
    )
    keeper.close()
    roster = read_roster(folder)
    roster.devices[0].budget = "9"
    write_roster(folder, roster)
    with pytest.raises(ofms.InvalidInput, match="budget is another now"):
        PersistentCoordinator(Deployment(folder))


def test_a_revoked_device_keeps_its_number(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    revoke_device(folder, "device-1")
    add_device(folder, "device-3", "5", "127.0.0.1:9092")
    devices = read_roster(folder).devices
    assert [(device.name, device.revoked) for device in devices] == [
        ("device-0", False),
        ("device-1", True),
        ("device-2", False),
        ("device-3", False),
    ]
    with pytest.raises(ofms.InvalidInput, match="there is one of this name"):
        add_device(folder, "device-1", "5", "127.0.0.1:9092")
    with pytest.raises(ofms.InvalidInput, match="no such device"):
        revoke_device(folder, "device-9")


def test_devices_may_be_added_to_a_deployment_that_went_on_for_a_while(tmp_path: Path, fleet: Fleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    keeper = PersistentCoordinator(Deployment(folder))
    fleet.join(keeper)
    fleet.exchange(keeper)
    before = parameters(keeper)
    keeper.close()
    add_device(folder, "device-3", "5", "127.0.0.1:9092")
    keeper = PersistentCoordinator(Deployment(folder))
    assert parameters(keeper) == before
    learnt = [device._memory.state.policy.cumulative_losses.tolist() for device in fleet.devices]
    fleet.exchange(keeper)
    assert len(keeper.counts) == CLIENTS + 1
    assert all(
        device._memory.state.policy.cumulative_losses.tolist() != each
        for device, each in zip(fleet.devices, learnt, strict=True)
    )
    keeper.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"deadline": -1}, "deadline = -1"),
        ({"address": "nowhere"}, "write HOST:PORT"),
        ({"policy": "poem"}, "poem"),
        ({"bandwidth": "1B"}, "bandwidth"),
        ({"settings": {"learning_rat": 1}}, "learning_rat"),
    ],
)
def test_a_server_file_that_makes_no_sense_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    values = msgspec.to_builtins(Deployment(folder).config) | change
    (folder / SERVER).write_text(tomli_w.dumps(values))
    with pytest.raises(ofms.InvalidInput, match=message):
        PersistentCoordinator(Deployment(folder))
