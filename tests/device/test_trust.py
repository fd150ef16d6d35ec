"""A welcome can name the zoo, built-in policies and code of trusted packages; nothing else is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import ofms
from ofms.device.device import Device
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import budgets_for, coordinator_for, problem

FACTORY = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("imported").touch()


def network(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], outputs))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user's own on Python's path."""
    folder = tmp_path / "code" / "fleetcode"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "networks.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(folder.parent)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "fleetcode"]:
        del sys.modules[name]


def welcome(architecture: str | None = None, **changes: Any) -> bytes:
    dictionary, _ = problem()
    envelope = decode(coordinator_for(dictionary, "ofms-ft").welcome(0))
    models = [dict(model) for model in envelope.values["models"]]
    if architecture is not None:
        models[1]["architecture"] = architecture
    return encode(Envelope("welcome", {**envelope.values, "models": models, **changes}))


def described(policy: str) -> dict[str, Any]:
    """What a welcome says of a policy, by another name."""
    envelope = decode(coordinator_for(problem()[0], "ofms-ft").welcome(0))
    return {**envelope.values["policy"], "name": policy}


def open_device(folder: Path, **options: Any) -> Device:
    return Device(folder / "store", budget=int(budgets_for(problem()[0])[0]), mail=False, **options)


@pytest.mark.parametrize("architecture", ["os:system", "posix:system", "fleetcode.networks:network", "fleetcode", ""])
@pytest.mark.parametrize("trust", [(), ("fleet",), ("networks", "fleetcodes")])
def test_untrusted_factories_are_refused_before_they_are_imported(
    architecture: str, trust: tuple[str, ...], package: Path, tmp_path: Path
) -> None:
    with open_device(tmp_path, trust=trust) as device:
        with pytest.raises(ofms.InvalidInput, match="architecture"):
            device.receive(welcome(architecture))
        assert device.collect() is None
    assert not (package / "imported").exists()


def test_a_welcome_runs_no_command(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    content = decode(welcome("os:system"))
    models = [dict(model) for model in content.values["models"]]
    models[1]["options"] = {"command": f"touch {marker}"}
    with open_device(tmp_path) as device, pytest.raises(ofms.InvalidInput, match="trust=\\('os',\\)"):
        device.receive(encode(Envelope("welcome", {**content.values, "models": models})))
    assert not marker.exists()


@pytest.mark.parametrize("policy", ["fleetcode.networks", "fleetcode.networks:build", "os"])
def test_untrusted_policies_are_refused_before_they_are_imported(policy: str, package: Path, tmp_path: Path) -> None:
    with open_device(tmp_path) as device, pytest.raises(ofms.InvalidInput, match="policy"):
        device.receive(welcome(policy=described(policy)))
    assert not (package / "imported").exists()


@pytest.mark.parametrize("trust", [("fleetcode",), ("other", "fleetcode.networks")])
def test_factories_of_trusted_packages_are_taken(trust: tuple[str, ...], package: Path, tmp_path: Path) -> None:
    with open_device(tmp_path, trust=trust) as device:
        device.receive(welcome("fleetcode.networks:network"))
        assert device.collect() is not None
    assert (package / "imported").exists()
    with pytest.raises(ofms.InvalidInput, match="trust=\\('fleetcode',\\)"):
        open_device(tmp_path)
    open_device(tmp_path, trust=trust).close()
