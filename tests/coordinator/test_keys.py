"""Keys, certificates and the commands around them."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

import ofms
from ofms.cli import _main
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.keys import add_device, make_deployment
from ofms.flower.superlink import allowed
from ofms.models.dictionary import Dictionary
from tests.deployments import make_fleet
from tests.devices import problem


@pytest.fixture
def models(tmp_path: Path) -> Path:
    problem()[0].write(tmp_path / "models")
    return tmp_path / "models"


def test_the_servers_certificate_holds_for_its_names(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    make_deployment(folder, "fleet.example.com:9092", models, hosts=["10.1.2.3"])
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    for name in (x509.DNSName("fleet.example.com"), x509.DNSName("localhost")):
        PolicyBuilder().store(Store([authority])).build_server_verifier(name).verify(certificate, [])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1"]
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    assert context.verify_mode == ssl.CERT_REQUIRED
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.pem", folder / "server.key")


def test_private_keys_are_for_their_owner(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    private = [*folder.rglob("*.key")]
    assert len(private) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    texts = (folder / "devices.toml").read_text()
    assert "PRIVATE" not in texts
    subprocess.run(["ssh-keygen", "-y", "-f", folder / "devices/device-0/device.key"], check=True, capture_output=True)


def test_public_keys_are_flowers(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    from ofms.coordinator.roster import public_key_pem, read_roster

    folder = make_fleet(tmp_path / "fleet")
    key = load_pem_public_key(public_key_pem(read_roster(folder).devices[0]))
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp384r1"


def test_only_the_fleets_part_is_for_other_machines() -> None:
    for path in (
        "/v1/control/start-run",
        "/v1/runtime/update_weight",
        "/docs",
        "/v1/fleetly",
        "/v1/fleet/../control/x",
    ):
        assert not allowed(path, ("192.168.0.9", 1))
        assert not allowed(path, None)
        assert allowed(path, ("127.0.0.1", 1))
    assert allowed("/v1/fleet/activate-node", ("192.168.0.9", 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "FOLDER", "--server", "here:9092"], "models = None"),
        (["keys", "FOLDER", "--server", "here", "--models", "MODELS"], "address = here: write HOST:PORT"),
        (["keys", "FOLDER", "--server", "here:99999", "--models", "MODELS"], "write HOST:PORT"),
        (["keys", "FOLDER", "--server", "here:1", "--models", "nowhere"], "nowhere"),
        (["keys", "FOLDER", "--device", "a=5"], "it is not a deployment"),
        (["keys", "FLEET", "--device", "a"], "is not NAME=BUDGET"),
        (["keys", "FLEET", "--device", "a=poem"], "budget = poem"),
        (["keys", "FLEET", "--device", "a=1B"], "two largest models together"),
        (["keys", "FOLDER", "--server", "here:1", "--models", "MODELS", "--interval", "0"], "interval = 0"),
        (["keys", "FOLDER", "--server", "hüben:1", "--models", "MODELS"], "write it in ASCII"),
        (["keys", "FLEET", "--device", "../a=5"], "device = ../a"),
        (["keys", "FLEET", "--device", "device-0=5"], "there is one of this name"),
        (["keys", "FLEET", "--server", "here:1", "--models", "MODELS"], "it is there already"),
        (["keys", "FLEET", "--revoke", "nobody"], "there is no such device"),
        (["server", "FOLDER"], "it is not a deployment"),
        (["device", "FOLDER", "--store", "STORE"], "device.toml is not there"),
        (["status", "FLEET"], "its server has not run yet"),
        (["status", "FOLDER"], "it is not a deployment"),
        (["freeze", "FOLDER"], "it is not a deployment"),
        (["rollback", "FLEET", "--to", "3"], "its server has not run yet"),
        (["export", "FOLDER", "STORE"], "it is not a deployment"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(tmp_path / "fleet")
    before = sorted(path.relative_to(fleet) for path in fleet.rglob("*"))
    places = {"FOLDER": tmp_path / "new", "FLEET": fleet, "MODELS": models, "STORE": tmp_path / "store"}
    assert _main(["deploy", *(str(places.get(each, each)) for each in arguments)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(path.relative_to(fleet) for path in fleet.rglob("*")) == before, "nothing half-written"
    assert not (tmp_path / "new").exists()


def test_a_fleet_by_command(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "new")
    assert _main(["deploy", "keys", folder, "--server", "here:9092", "--models", str(models)]) == 0
    assert _main(["deploy", "keys", folder, "--device", "a=5", "--device", "b=64KiB"]) == 0
    assert _main(["deploy", "keys", folder, "--revoke", "a"]) == 0
    said = capsys.readouterr().out
    assert "check it before you start the server" in said
    assert f"{folder}/devices/b: copy it to b" in said
    assert "a is revoked" in said
    assert _main(["deploy", "freeze", folder]) == 0
    (command,) = (tmp_path / "new" / "commands").iterdir()
    assert json.loads(command.read_text()) == {"do": "freeze", "to": None}


def test_a_deployment_of_ones_own_networks_names_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --trust nothing of the package is imported; with it, `server.toml` says so and the server reads it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "fleet_networks.py").write_text(
        "from torch.nn import Linear, Sequential\n\n\n"
        "def small(width):\n    return Sequential(Linear(3, width), Linear(width, 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "code")
    architectures = {name: ("fleet_networks:small", {"width": 2 + k}) for k, name in enumerate("abc")}
    modules = {
        name: torch.nn.Sequential(torch.nn.Linear(3, 2 + k), torch.nn.Linear(2 + k, 1)) for k, name in enumerate("abc")
    }
    models = tmp_path / "models"
    Dictionary.from_modules(modules, task="regression", architectures=architectures).write(models)
    with pytest.raises(ofms.InvalidInput, match="--trust fleet_networks"):
        make_deployment(tmp_path / "fleet", "127.0.0.1:9092", models)
    assert "fleet_networks" not in sys.modules
    assert not (tmp_path / "fleet").exists(), "nothing half-written"
    make_deployment(tmp_path / "fleet", "127.0.0.1:9092", models, trust=["fleet_networks"])
    add_device(tmp_path / "fleet", "device-0", "3", "127.0.0.1:9092")
    assert len(Deployment(tmp_path / "fleet").coordinator().tensors) == 3
    del sys.modules["fleet_networks"]
