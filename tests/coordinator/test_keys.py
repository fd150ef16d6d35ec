"""Keys and certificates of a deployment."""

from __future__ import annotations

import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509.verification import PolicyBuilder, Store

import ofms
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.keys import add_device, make_deployment
from ofms.coordinator.roster import public_key_pem, read_roster
from ofms.models.dictionary import Dictionary
from tests.deployments import make_fleet
from tests.devices import problem


@pytest.fixture
def models(tmp_path: Path) -> Path:
    problem()[0].write(tmp_path / "models")
    return tmp_path / "models"


def test_the_servers_certificate_is_valid_for_its_names(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    make_deployment(folder, "fleet.example.com:9092", models, policy="ofms-ft", rounds=100, hosts=["10.1.2.3"])
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    for name in (x509.DNSName("fleet.example.com"), x509.DNSName("localhost")):
        PolicyBuilder().store(Store([authority])).build_server_verifier(name).verify(certificate, [])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1"]
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    assert context.verify_mode == ssl.CERT_REQUIRED
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.pem", folder / "server.key")


def test_private_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    private = [*folder.rglob("*.key")]
    assert len(private) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert "PRIVATE" not in (folder / "devices.toml").read_text()
    subprocess.run(["ssh-keygen", "-y", "-f", folder / "devices/device-0/device.key"], check=True, capture_output=True)


def test_public_keys_are_on_the_curve_that_flower_expects(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    key = load_pem_public_key(public_key_pem(read_roster(folder).devices[0]))
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp384r1"


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
    make_deployment(tmp_path / "fleet", "127.0.0.1:9092", models, policy="mab", rounds=100, trust=["fleet_networks"])
    add_device(tmp_path / "fleet", "device-0", "3", "127.0.0.1:9092")
    assert len(Deployment(tmp_path / "fleet").coordinator().tensors) == 3
    del sys.modules["fleet_networks"]
