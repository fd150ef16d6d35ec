"""`ofms deploy`: keys and commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ofms.coordinator.deployment import Deployment, read_config
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.models.dictionary import Dictionary
from ofms.policies import DEFAULT
from tests.cli.commands import assert_refused, run
from tests.deployments import make_fleet
from tests.devices import problem

NEW = ["keys", "FOLDER", "--server", "here:1", "--models", "MODELS"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A dictionary for regression."""
    problem()[0].write(tmp_path / "models")
    return tmp_path / "models"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "FOLDER", "--server", "here:9092"], "models = None"),
        (["keys", "FOLDER", "--server", "here", "--models", "MODELS"], "address = here: write HOST:PORT"),
        (["keys", "FOLDER", "--server", "here:99999", "--models", "MODELS"], "write HOST:PORT"),
        (["keys", "FOLDER", "--server", "here:1", "--models", "nowhere"], "nowhere"),
        (["keys", "FOLDER", "--device", "a=5"], "not a deployment"),
        (["keys", "FLEET", "--device", "a"], "is not NAME=BUDGET"),
        (["keys", "FLEET", "--device", "a=poem"], "budget = poem"),
        (["keys", "FLEET", "--device", "a=1B"], "two largest models together"),
        (["keys", "FOLDER", "--server", "here:1", "--models", "MODELS", "--interval", "0"], "interval = 0"),
        ([*NEW, "--rounds", "0"], "rounds = 0: give a number of at least 1, or leave it out"),
        ([*NEW, "--policy", "ofms-ft"], "learning_rate = tuned: it depends on the horizon T; give rounds"),
        ([*NEW, "--policy", "mab", "--set", "learning_rate=1/sqrt(T)"], "learning_rate = 1/sqrt(T): it depends on"),
        ([*NEW, "--policy", "mab", "--set", "colour=1", "--rounds", "9"], "settings = colour: policy mab has"),
        ([*NEW, "--policy", "poem"], "policy = poem: use one of"),
        ([*NEW, "--quorum", "1.5"], "quorum = 1.5: give a number above 0, up to 1"),
        (["keys", "FOLDER", "--server", "hüben:1", "--models", "MODELS"], "write it in ASCII"),
        ([*NEW, "--host", ""], "host = '': write it in ASCII, as a name or an address"),
        ([*NEW, "--host", "*.x y"], "host = *.x y: write it in ASCII, as a name"),
        ([*NEW, "--host", "a.*.b"], "host = a.*.b: write it"),
        (["keys", "FOLDER", "--server", "a b:1", "--models", "MODELS"], "host = a b: write it"),
        (["keys", "FLEET", "--policy", "mab", "--device", "b=5"], "policy = mab: it is for a new deployment; change"),
        (["keys", "FLEET", "--policy", DEFAULT], "deploy set"),
        (
            ["keys", "FLEET", "--set", "window=6"],
            "set = window=6: it is for a new deployment; change this one with: of",
        ),
        (["keys", "FLEET", "--interval", "20"], "interval = 20: it is for a new deployment; change this one"),
        (["keys", "FLEET", "--quorum", "0.8"], "--quorum SHARE"),
        (
            ["keys", "FLEET", "--rounds", "5", "--device", "b=5"],
            "rounds = 5: it is for a new deployment, with --server",
        ),
        (["keys", "FLEET", "--doubling", "5"], "this one has its values in server.toml"),
        (["keys", "FLEET", "--host", "here", "--host", "there"], "host = here, there: it is for a new deployment"),
        (["keys", "FLEET", "--models", "MODELS"], "ofms deploy models add"),
        (["keys", "FLEET", "--trust", "pumps"], "trust = pumps: it is for a new deployment"),
        (["keys", "FLEET", "--device", "../a=5"], "device = ../a"),
        (["keys", "FLEET", "--device", "device-0=5"], "this name already exists"),
        (["keys", "FLEET", "--server", "here:1", "--models", "MODELS"], "it already exists"),
        (["keys", "FLEET", "--revoke", "nobody"], "no such device"),
        ([*NEW, "--device", "a=5", "--device", "b=1B"], "two largest models together"),
        ([*NEW, "--device", "a=5", "--revoke", "b"], "no such device; the devices are: none"),
        (["keys", "FLEET", "--device", "a=5", "--device", "../b=5"], "device = ../b"),
        (["keys", "FLEET", "--device", "a=5", "--revoke", "nobody"], "no such device"),
        (["keys", "FLEET", "--revoke", "device-0", "--revoke", "nobody"], "no such device"),
        (["server", "FOLDER"], "not a deployment"),
        (["device", "FOLDER", "--store", "STORE"], "device.toml is missing"),
        (["status", "FLEET"], "its server has not run yet"),
        (["status", "FOLDER"], "not a deployment"),
        (["freeze", "FOLDER"], "not a deployment"),
        (["rollback", "FLEET", "--to", "3"], "its server has not run yet"),
        (["export", "FOLDER", "STORE"], "not a deployment"),
        (["models", "retire", "FLEET", "netX"], "retire = netX: no such model is in use; name one of net0"),
        (["models", "retire", "FLEET", "net0", "net1", "net2", "net3", "net4"], "at least 2 models; add another one"),
        (["models", "add", "FLEET", "nowhere"], "it has no readable dictionary"),
        (["models", "add", "FLEET", "MODELS"], "two models have this name"),
        (["models", "add", "FLEET", "MODELS", "--model", "netX"], "model = netX"),
        (["models", "add", "FOLDER", "MODELS"], "not a deployment"),
        (["set", "FLEET"], "nothing to change: give an option"),
        (["set", "FLEET", "--budget", "device-0=1B"], "device-0 has 1 bytes: it must hold the two largest models"),
        (["set", "FLEET", "--budget", "nobody=5"], "budget = nobody: no such device"),
        (["set", "FLEET", "--bandwidth", "1B"], "bandwidth = 1 bytes: a client may have to upload"),
        (["set", "FLEET", "--interval", "0"], "interval = 0: give at least 1"),
        (["set", "FLEET", "--deadline", "0"], "deadline = 0.0: give a number above 0"),
        (["set", "FLEET", "--quorum", "0"], "quorum = 0.0: give a share above 0, up to 1"),
        (["set", "FLEET", "--quorum", "nan"], "quorum = nan: give a share above 0, up to 1"),
        (["set", "FLEET", "--staleness", "-1"], "staleness = -1: give a number of exchanges, from 0 on"),
        (["set", "FLEET", "--policy", "poem"], "policy = poem: use one of"),
        (["set", "FLEET", "--set", "colour=1"], "set = colour: ofms-ft has"),
    ],
)
def test_a_faulty_command_is_refused_in_one_line(
    arguments: list[str], message: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(tmp_path / "fleet")
    before = sorted(path.relative_to(fleet) for path in fleet.rglob("*"))
    places: dict[str, str | Path] = {
        "FOLDER": tmp_path / "new",
        "FLEET": fleet,
        "MODELS": models,
        "STORE": tmp_path / "store",
    }
    assert_refused(capsys, run("deploy", *(places.get(each, each) for each in arguments)), message)
    assert sorted(path.relative_to(fleet) for path in fleet.rglob("*")) == before, "nothing half-written"
    assert not (tmp_path / "new").exists()


def test_a_server_that_logs_json_also_says_so_why_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("deploy", "server", tmp_path / "nowhere", "--log-format", "json") == 2
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["logger"]) for line in lines] == [("error", "ofms")]
    assert run("deploy", "status", tmp_path / "nowhere") == 2
    assert capsys.readouterr().err.startswith("ofms: "), "of this command alone"


def test_keys_makes_adds_and_revokes(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "new")
    policy = ["--policy", "ofms-ft", "--rounds", "1000"]
    assert run("deploy", "keys", folder, "--server", "here:9092", "--models", str(models), *policy) == 0
    assert run("deploy", "keys", folder, "--device", "a=5", "--device", "b=64KiB") == 0
    assert run("deploy", "keys", folder, "--revoke", "a") == 0
    printed = capsys.readouterr().out
    assert "check it before you start the server" in printed
    assert f"{folder}/devices/b: copy it to b" in printed
    assert "a is revoked" in printed
    assert run("deploy", "freeze", folder) == 0
    (command,) = (tmp_path / "new" / "commands").iterdir()
    assert json.loads(command.read_text()) == {"do": "freeze", "to": None, "change": None}


def test_the_default_policy_needs_no_horizon(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    assert run("deploy", "keys", folder, "--server", "127.0.0.1:9092", "--models", models, "--device", "a=5") == 0
    assert "change" not in capsys.readouterr().out, "the server would start"
    config = read_config(folder)
    assert (config.policy, config.rounds) == (DEFAULT, None)


def test_a_deployment_without_a_horizon(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    policy = ["--policy", "mab", "--set", "learning_rate=0.1"]
    assert run("deploy", "keys", folder, "--server", "127.0.0.1:9092", "--models", models, *policy) == 0
    assert run("deploy", "keys", folder, "--device", "a=5") == 0
    assert "change" not in capsys.readouterr().out, "the server would start"
    server = folder / "server.toml"
    server.write_text(server.read_text().replace("learning_rate = 0.1", 'learning_rate = "tuned"'))
    assert run("deploy", "keys", folder, "--device", "b=5") == 0
    refused = "learning_rate = tuned: it depends on the horizon T; give rounds"
    assert f"change {server}: {refused}" in capsys.readouterr().out
    assert_refused(capsys, run("deploy", "server", folder), refused)


def test_models_and_settings_are_changed_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_fleet(tmp_path / "fleet")
    whole = problem()[0]
    renamed = tuple(replace(model, name=f"new-{model.name}") for model in whole.models[:2])
    Dictionary(whole.task, renamed).write(tmp_path / "more")
    for arguments in (
        ["models", "retire", str(folder), "net0"],
        ["models", "add", str(folder), str(tmp_path / "more"), "--model", "new-net1"],
        ["set", str(folder), "--bandwidth", "150%", "--interval", "3", "--budget", "device-0=4", "--deadline", "9"],
        ["set", str(folder), "--set", "learning_rate=0.25"],
        ["set", str(folder), "--quorum", "0.9", "--staleness", "3"],
    ):
        assert run("deploy", *arguments) == 0
        assert "before its next exchange" in capsys.readouterr().out
    persistence = PersistentCoordinator(Deployment(folder))
    assert persistence.run_commands()
    coordinator = persistence.coordinator
    persistence.close()
    names = [coordinator.fleet.catalogue.names[slot] for slot in coordinator.setup.places]
    assert names == ["net1", "net2", "net3", "net4", "net5", "new-net1"]
    assert (coordinator.fleet.schedule.interval, coordinator.settings["learning_rate"]) == (3, 0.25)
    assert coordinator.fleet.budgets[0] == 4 * coordinator.fleet.catalogue.storage.max()
    assert (persistence.deadline, persistence.quorum, coordinator.staleness) == (9, 0.9, 3)
    events = (folder / "events.log").read_text()
    assert "exchange 0: model new-net1 is added" in events
    assert "exchange 0: device-0 has" in events


def test_a_policy_that_needs_a_horizon_is_deployed_by_doubling(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    arguments = ["--server", "here:1", "--models", str(models), "--policy", "mab", "--doubling", "100"]
    assert run("deploy", "keys", str(folder), *arguments, "--device", "a=5") == 0
    assert read_config(folder).doubling == 100
    assert Deployment(folder).coordinator().setup.horizon == 100
