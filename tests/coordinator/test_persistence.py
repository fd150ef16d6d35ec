"""Checkpoints, history, counts and status of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

import ofms
from ofms.coordinator.commands import Command, give_command
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import EVENTS, SERVER, STATE, STATUS
from ofms.coordinator.keys import add_device, revoke_device
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.roster import read_roster, write_roster
from ofms.coordinator.status import read_status, status_text
from ofms.models.dictionary import Dictionary
from ofms.runs.config import without_nothing
from tests.deployments import SETTINGS, DirectFleet, make_fleet, parameters
from tests.devices import CLIENTS


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[DirectFleet]:
    made = DirectFleet(tmp_path / "devices")
    yield made
    made.close()


def serve_one_exchange(folder: Path, fleet: DirectFleet) -> PersistentCoordinator:
    """Run a server for one exchange and stop it."""
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.join(persistence)
    fleet.exchange(persistence)
    persistence.close()
    return persistence


def test_a_restarted_server_continues_from_its_checkpoint(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "one")
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.join(persistence)
    for _ in range(4):
        fleet.exchange(persistence)
    persistence.close()
    other, again = DirectFleet(tmp_path / "others"), make_fleet(tmp_path / "two")
    for exchange in range(4):
        reopened = PersistentCoordinator(Deployment(again))
        if exchange == 0:
            other.join(reopened)
            reopened.save()
        assert reopened.coordinator.exchange == exchange
        other.exchange(reopened)
        # The server opens the next exchange and ends before it closes it: nothing of it counts.
        reopened.coordinator.open(set(range(CLIENTS)))
        reopened.close()
    last = PersistentCoordinator(Deployment(again))
    other.close()
    assert parameters(last) == parameters(persistence)
    assert last.coordinator.version.tolist() == persistence.coordinator.version.tolist()
    assert [counts.exchanges for counts in last.records.counts] == [4] * CLIENTS
    last.close()


def test_a_quarantine_is_kept_until_the_dictionary_is_thawed(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.join(persistence)
    fleet.exchange(persistence)
    fleet.answer_all(persistence)
    before, opened = parameters(persistence), persistence.coordinator.opened
    assert opened is not None
    model = min(model for answer in opened.answers.values() for model in answer.updates)
    for answer in opened.answers.values():
        for delta in answer.updates[model].delta.values() if model in answer.updates else ():
            delta.fill_(3e38)
            object.__setattr__(answer.updates[model], "weight", 1e30)
    persistence.close_exchange()
    name = persistence.coordinator.fleet.catalogue.names[model]
    line = f"exchange 1: {name} is quarantined: its updates are not finite; it keeps its last finite version"
    assert line in (folder / EVENTS).read_text()
    assert parameters(persistence)[model] == before[model]
    assert f"quarantined, because their updates were not finite: {name}" in status_text(read_status(folder))
    persistence.close()
    again = PersistentCoordinator(Deployment(folder))
    assert again.coordinator.quarantined == [model]
    fleet.exchange(again)
    assert parameters(again)[model] == before[model], "it is not fine-tuned"
    give_command(folder, Command("thaw"))
    again.run_commands()
    assert again.coordinator.quarantined == []
    again.close()


def test_two_servers_cannot_use_one_deployment(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    persistence = PersistentCoordinator(Deployment(folder))
    with pytest.raises(ofms.InvalidInput, match="another process is using it"):
        PersistentCoordinator(Deployment(folder))
    PersistentCoordinator(Deployment(folder), read_only=True)
    persistence.close()
    PersistentCoordinator(Deployment(folder)).close()


def test_a_damaged_checkpoint_or_one_of_another_configuration_is_refused(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    serve_one_exchange(folder, fleet)
    config = (folder / SERVER).read_text()
    (folder / SERVER).write_text(config.replace("seed = 5", "seed = 6"))
    with pytest.raises(ofms.InvalidInput, match="another dictionary, policy, horizon or seed"):
        PersistentCoordinator(Deployment(folder))
    (folder / SERVER).write_text(config)
    checkpoint = folder / STATE / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ofms.InvalidInput, match="it cannot be read"):
        PersistentCoordinator(Deployment(folder))


def test_freeze_and_rollback(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "fleet", keep=2)
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.join(persistence)
    seen = [parameters(persistence)]
    for _ in range(4):
        fleet.exchange(persistence)
        seen.append(parameters(persistence))
    assert [moment.exchange for moment in persistence.records.history] == [0, 3, 4]
    give_command(folder, Command("freeze"))
    give_command(folder, Command("rollback", 3))
    give_command(folder, Command("rollback", 2))
    give_command(folder, Command("dance"))
    persistence.run_commands()
    assert parameters(persistence) == seen[3]
    versions = persistence.coordinator.version.tolist()
    persistence.close()
    persistence = PersistentCoordinator(Deployment(folder))
    assert (parameters(persistence), persistence.coordinator.version.tolist(), persistence.coordinator.frozen) == (
        seen[3],
        versions,
        True,
    )
    events = (folder / EVENTS).read_text()
    assert "rolled back to the dictionary before exchange 3" in events
    assert "rollback = 2: use one of [0, 3, 4]" in events
    assert "command = dance: use freeze, thaw, rollback or change" in events
    fleet.exchange(persistence)
    assert parameters(persistence) == seen[3], "frozen"
    for device in fleet.devices:
        assert device._state.held_models is not None
        for model in device.holding:
            assert device._state.memory.versions[model] == versions[model]
            for name, tensor in device._state.held_models.tensors[model].items():
                assert tensor.flatten().tolist() == seen[3][model][name], "devices have the restored parameters"
    give_command(folder, Command("rollback", 0))
    persistence.run_commands()
    assert parameters(persistence) == seen[0]
    out = tmp_path / "exported"
    persistence.write_dictionary(out)
    for mine, first in zip(Dictionary.read(out).models, persistence.coordinator.dictionary.models, strict=True):
        assert all((mine.tensors[name] == first.tensors[name]).all() for name in first.tensors)
    persistence.close()
    files = len(list((folder / STATE / "models").glob("*")))
    assert files <= 6 * 3, "versions that no rollback needs are removed"


def test_status_counts_bytes_and_refusals(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    with pytest.raises(ofms.InvalidInput, match="has not run yet"):
        read_status(folder)
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.join(persistence)
    for client in range(CLIENTS):
        persistence.count(client, down=100 + client, up=10)
    fleet.exchange(persistence)
    persistence.refuse(1, "message rejected: it is a poem")
    persistence.save()
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
    assert "exchange 1: device-1: message rejected: it is a poem" in text
    persistence.close()
    assert "stopped" in status_text(read_status(folder))
    for name in ("bytes_down", "held_bytes", "last_exchange"):
        devices = [{key: value for key, value in device.items() if key != name} for device in status["devices"]]
        (folder / STATUS).write_text(json.dumps(status | {"devices": devices}))
        with pytest.raises(ofms.InvalidInput, match=f"damaged .*{name}"):
            read_status(folder)


def test_files_of_an_unfinished_checkpoint_are_not_used(tmp_path: Path, fleet: DirectFleet) -> None:
    """Model files of an exchange that never counted have the names of the next versions."""
    folder = make_fleet(tmp_path / "fleet")
    persistence = serve_one_exchange(folder, fleet)
    for model, version in enumerate(persistence.coordinator.version.tolist()):
        left = folder / STATE / "models" / f"{model}-{version + 1}.safetensors"
        left.write_bytes(b"left behind by a server that was killed")
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.exchange(persistence)
    expected = parameters(persistence)
    persistence.close()
    again = PersistentCoordinator(Deployment(folder))
    assert parameters(again) == expected
    again.close()


def test_a_deployment_keeps_its_name_across_restarts(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    persistence = PersistentCoordinator(Deployment(folder))
    persistence.save()
    persistence.close()
    again = PersistentCoordinator(Deployment(folder))
    assert again.coordinator.deployment == persistence.coordinator.deployment
    again.close()


def test_the_answer_of_a_revoked_device_does_not_count(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    persistence = PersistentCoordinator(Deployment(folder))
    fleet.join(persistence)
    fleet.answer_all(persistence)
    persistence.revoke(1)
    assert persistence.coordinator.opened is not None
    assert sorted(persistence.coordinator.opened.answers) == [0, 2]
    assert sorted(persistence.coordinator.requests) == [0, 2]
    persistence.close_exchange()
    assert persistence.records.counts[1].last_exchange == -1
    persistence.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 14}, "policy, horizon or seed"),
        ({"interval": 3}, "policy, horizon or seed"),
        ({"settings": SETTINGS | {"window": 2}}, "policy, horizon or seed"),
        ({"bandwidth": "150%", "deadline": 7, "largest_update": 2.0}, None),
    ],
)
def test_which_settings_may_change_at_a_restart(
    change: dict[str, Any], message: str | None, tmp_path: Path, fleet: DirectFleet
) -> None:
    folder = make_fleet(tmp_path / "fleet")
    serve_one_exchange(folder, fleet)
    values = without_nothing(msgspec.to_builtins(Deployment(folder).config)) | change
    (folder / SERVER).write_text(tomli_w.dumps(values))
    if message is not None:
        with pytest.raises(ofms.InvalidInput, match=message):
            PersistentCoordinator(Deployment(folder))
        return
    persistence = PersistentCoordinator(Deployment(folder))
    assert (
        persistence.coordinator.session.fleet.bandwidth
        == persistence.coordinator.fleet.bandwidth
        == int(1.5 * persistence.coordinator.fleet.budgets.sum())
    )
    persistence.close()
    roster = read_roster(folder)
    roster.devices[0].budget = "9"
    write_roster(folder, roster)
    with pytest.raises(ofms.InvalidInput, match="budget has changed"):
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
    with pytest.raises(ofms.InvalidInput, match="this name already exists"):
        add_device(folder, "device-1", "5", "127.0.0.1:9092")
    with pytest.raises(ofms.InvalidInput, match="no such device"):
        revoke_device(folder, "device-9")


def test_devices_can_be_added_between_exchanges(tmp_path: Path, fleet: DirectFleet) -> None:
    folder = make_fleet(tmp_path / "fleet")
    before = parameters(serve_one_exchange(folder, fleet))
    add_device(folder, "device-3", "5", "127.0.0.1:9092")
    persistence = PersistentCoordinator(Deployment(folder))
    assert parameters(persistence) == before
    learnt = [device._state.memory.state.policy.cumulative_losses.tolist() for device in fleet.devices]
    fleet.exchange(persistence)
    assert len(persistence.records.counts) == CLIENTS + 1
    assert all(
        device._state.memory.state.policy.cumulative_losses.tolist() != each
        for device, each in zip(fleet.devices, learnt, strict=True)
    )
    persistence.close()


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
def test_an_invalid_server_file_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    values = without_nothing(msgspec.to_builtins(Deployment(folder).config)) | change
    (folder / SERVER).write_text(tomli_w.dumps(values))
    with pytest.raises(ofms.InvalidInput, match=message):
        PersistentCoordinator(Deployment(folder))


def test_a_restart_with_a_mistake_in_devices_toml_keeps_the_last_valid_devices(
    tmp_path: Path, fleet: DirectFleet
) -> None:
    folder = make_fleet(tmp_path / "fleet")
    serve_one_exchange(folder, fleet).close()
    names = [device.name for device in read_roster(folder).devices]
    path = folder / "devices.toml"
    path.write_text(path.read_text().replace("ecdsa-sha2", "ecdsa-sha3", 1))
    with pytest.raises(ofms.InvalidInput, match=r"devices\.toml: key of device-0"):
        read_roster(folder)
    again = PersistentCoordinator(Deployment(folder))
    assert [device.name for device in again.deployment.roster.devices] == names
    again.close()
    assert "keeping the last valid devices" in (folder / EVENTS).read_text()
    (folder / STATE / "devices.toml").unlink()
    with pytest.raises(ofms.InvalidInput, match="key of device-0"):
        Deployment(folder)


def test_a_wrong_choice_in_server_toml_is_named_with_the_right_ones(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    values = without_nothing(msgspec.to_builtins(Deployment(folder).config))
    (folder / SERVER).write_text(tomli_w.dumps(values | {"settings": {"loss_bound": "soft"}}))
    with pytest.raises(ofms.InvalidInput, match="loss_bound = soft: use one of clip, saturate, raw"):
        Deployment(folder).coordinator()
