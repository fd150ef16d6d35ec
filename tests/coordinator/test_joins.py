"""Devices that cannot join: refused before they get a key, and no obstacle to the devices after them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ofms
from ofms.coordinator.changes import Requested
from ofms.coordinator.files import DEVICE_FOLDERS, DEVICES, EVENTS
from ofms.coordinator.keys import add_device, revoke_device
from ofms.coordinator.operation import request_change
from ofms.coordinator.roster import read_roster, write_roster
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from tests.cli.commands import run
from tests.coordinator.changing_fleet import ADDRESS, ChangingFleet
from tests.policy_settings import SETTINGS


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[ChangingFleet]:
    made = ChangingFleet(tmp_path, "late-hedge")
    yield made
    made.close()


def run_commands(fleet: ChangingFleet) -> None:
    """What the server does before an exchange."""
    fleet.persistence.deployment.roster.devices[:] = read_roster(fleet.folder).devices
    fleet.persistence.run_commands()


def members(fleet: ChangingFleet) -> tuple[int, ...]:
    return fleet.persistence.coordinator.setup.members


@pytest.fixture
def largest(changing: ChangingFleet, tmp_path: Path) -> int:
    """The bytes of a model that was added, larger than the first ones; all devices have memory for three of it."""
    architectures = dict.fromkeys(("large", "other"), ("mlp", {"inputs": 3, "hidden": [30, 30], "outputs": 1}))
    modules = {name: build_module(*each) for name, each in architectures.items()}
    further = Dictionary.from_modules(modules, task="regression", architectures=architectures)
    size = int(further.catalogue().storage[0])
    further.write(tmp_path / "further models")
    changing.run(1)
    request_change(changing.folder, Requested(budget={f"device-{client}": f"{3 * size}B" for client in range(3)}))
    run_commands(changing)
    request_change(changing.folder, Requested(), models=tmp_path / "further models", names=["large"])
    run_commands(changing)
    assert size > 2 * max(changing.dictionary.catalogue().storage)
    return size


def test_a_device_too_small_for_models_added_since_is_refused_with_nothing_written(
    changing: ChangingFleet, largest: int
) -> None:
    """It has memory for all models of the beginning."""
    before = (changing.folder / DEVICES).read_bytes()
    with pytest.raises(ofms.InvalidInput, match=f"budget = {largest} bytes: it must hold the two largest models"):
        add_device(changing.folder, "small", f"{largest}B", ADDRESS)
    assert (changing.folder / DEVICES).read_bytes() == before
    assert not (changing.folder / DEVICE_FOLDERS / "small").exists()
    add_device(changing.folder, "good", f"{3 * largest}B", ADDRESS)
    run_commands(changing)
    assert members(changing) == (0, 1, 2, 3)


def test_a_device_that_uploads_more_than_the_bandwidth_in_force_is_refused(tmp_path: Path) -> None:
    """`server.toml` says 100 %; a command changed it to what smaller devices need, which upload all that they hold."""
    changing = ChangingFleet(tmp_path, "late-hedge", settings=SETTINGS["late-hedge"] | {"fine_tuned": "used"})
    changing.run(1)
    least = f"{min(changing.budgets)}B"
    budgets = {f"device-{client}": least for client in range(3)}
    request_change(changing.folder, Requested(budget=budgets, bandwidth=least))
    run_commands(changing)
    with pytest.raises(ofms.InvalidInput, match=r"bandwidth = .* a client may have to upload"):
        add_device(changing.folder, "large", f"{max(changing.budgets)}B", ADDRESS)
    changing.close()


def test_an_impossible_entry_does_not_keep_later_devices_out(changing: ChangingFleet, largest: int) -> None:
    """An entry by hand, and one that is revoked before it joined; over a restart, and until it is possible."""
    for name in ("small", "revoked", "good"):
        add_device(changing.folder, name, f"{3 * largest}B", ADDRESS)
    revoke_device(changing.folder, "revoked")
    roster = read_roster(changing.folder)
    roster.devices[3].budget = roster.devices[4].budget = f"{largest}B"
    write_roster(changing.folder, roster)
    for _ in range(2):
        run_commands(changing)
        assert members(changing) == (0, 1, 2, 5)
        changing.restart()
    events = (changing.folder / EVENTS).read_text()
    assert "not possible: small joins: budget = " in events
    assert "revoked" not in events
    budgets = changing.persistence.coordinator.fleet.budgets.tolist()
    assert budgets[3:] == [0, 0, 3 * largest]
    request_change(changing.folder, Requested(retire=["large"]))
    run_commands(changing)
    run_commands(changing)
    assert members(changing) == (0, 1, 2, 3, 5)
    changing.restart()
    assert members(changing) == (0, 1, 2, 3, 5)


def test_a_budget_that_suffices_since_large_models_were_retired_is_accepted(
    changing: ChangingFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dictionary of the beginning needs memory for two of the large models."""
    storage = changing.dictionary.catalogue().storage
    enough = 2 * int(storage.min())
    with pytest.raises(ofms.InvalidInput, match="it must hold the two largest models"):
        add_device(changing.folder, "small", f"{enough}B", ADDRESS)
    request_change(changing.folder, Requested(retire=["net0", "net2", "net4"]))
    changing.run(1)
    assert run("deploy", "keys", changing.folder, "--device", f"small={enough}B") == 0
    assert "before the server starts" not in capsys.readouterr().out
    run_commands(changing)
    assert members(changing) == (0, 1, 2, 3)
