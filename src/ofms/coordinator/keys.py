"""The fleet's certificate authority, the server's certificate, and a key for each device."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ofms.coordinator.deployment import ServerConfig, filled_template, read_config
from ofms.coordinator.files import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTIFICATE,
    CERTIFICATE_KEY,
    DEVICE_FILE,
    DEVICE_FOLDERS,
    DEVICE_KEY,
    SERVER,
    DeviceFile,
    split_address,
)
from ofms.coordinator.joins import has_begun, require_joins
from ofms.coordinator.roster import DeviceEntry, Roster, read_roster, require_name, write_roster
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.models.dictionary import Dictionary
from ofms.plugins import Trust, trust_of
from ofms.policies import DEFAULT
from ofms.policies.fleet import Fleet, require_budgets
from ofms.policies.registry import build_policy, trust_in
from ofms.runs.schemas import TrustTable
from ofms.runs.units import parse_budgets
from ofms.storage.files import new_folder, require_writable, write_whole
from ofms.storage.private import require_private

_DAYS = 3650
_PRIVATE = 0o600
_LOCAL = ("localhost", "127.0.0.1")


def make_deployment(
    folder: Path,
    address: str,
    models: Path,
    *,
    hosts: Sequence[str] = (),
    policy: str = DEFAULT,
    settings: Mapping[str, Any] | None = None,
    interval: int = 20,
    rounds: int | None = None,
    doubling: int | None = None,
    quorum: float = 1.0,
    trust: Sequence[str] = (),
) -> None:
    """Create a deployment: `server.toml`, a certificate authority, and the server's certificate.

    Parameters
    ----------
    policy, settings
        A policy and those of its settings that are not the defaults.
    rounds
        The horizon T, in samples; None if the fleet runs until it is stopped.
    doubling
        Without a horizon: the samples of the first stretch of the doubling trick, for rates that depend on T.
    quorum
        The share of its devices whose answers close an exchange.
    """
    host, _ = split_address(address)
    given: dict[str, Any] = {"policy": policy, "settings": dict(settings or {}), "interval": interval}
    given |= {"rounds": rounds, "doubling": doubling, "quorum": quorum}
    config = ServerConfig(address=address, models=str(models.absolute()), **given)
    trusted = trust_of(trust) | trust_in(policy)
    dictionary = Dictionary.read(models, trust=trusted)
    dictionary.require_deployable()
    names = _names(list(dict.fromkeys([host, *hosts, *_LOCAL])))
    if (folder / SERVER).exists():
        raise InvalidInput("deployment", folder, "it already exists; omit --server to add devices to it")
    _require_policy(config, dictionary.catalogue(), trusted)
    # A folder that exists may have other things in it.
    (require_writable if folder.exists() else require_private)(folder)
    key, certificate = _make_authority()
    write_whole(folder / AUTHORITY_KEY, _pem(key), mode=_PRIVATE)
    write_whole(folder / AUTHORITY, certificate.public_bytes(serialization.Encoding.PEM))
    own, signed = _make_certificate(key, certificate, host, names)
    write_whole(folder / CERTIFICATE_KEY, _pem(own), mode=_PRIVATE)
    write_whole(folder / CERTIFICATE, signed.public_bytes(serialization.Encoding.PEM))
    write_roster(folder, Roster())
    content = filled_template(config)
    if trusted.packages:
        table = TrustTable(trusted.packages, trusted.folders)
        content += "\n" + tomli_w.dumps({"trust": msgspec.to_builtins(table)})
    write_whole(folder / SERVER, content.encode())


def _require_policy(config: ServerConfig, catalogue: Catalogue, trust: Trust) -> None:
    """Reject a policy that cannot be built, for example without a horizon; a device with all models stands for all."""
    # Policies may hold or send two copies of a model.
    budget, bandwidth = 2 * catalogue.storage.sum(keepdims=True), 2 * int(catalogue.upload.sum())
    fleet = Fleet(catalogue, budget, bandwidth, Schedule(config.rounds or config.doubling, config.interval))
    build_policy(config.policy, config.policy_settings(trust), fleet, trust)


def add_device(folder: Path, name: str, budget: str, address: str) -> Path:
    """Create a device's key; return the folder to copy onto the device."""
    return change_devices(folder, {name: budget}, (), address)[0]


def revoke_device(folder: Path, name: str) -> None:
    """Mark a device as revoked; the server excludes it."""
    change_devices(folder, {}, [name], "")


def change_devices(folder: Path, added: Mapping[str, str], revoked: Sequence[str], address: str) -> list[Path]:
    """Add devices with their budgets and revoke others, all or none; return the folders to copy onto new devices."""
    roster = read_roster(folder)
    known = {device.name: device for device in roster.devices}
    for name, budget in added.items():
        require_name(name)
        parse_budgets(budget, largest=1, clients=1)
        if name in known:
            raise InvalidInput("device", name, "this name already exists; add a revoked device under a new name")
    for name in revoked:
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidInput("revoke", name, f"no such device; the devices are: {names}")
        known[name].revoked = True
    if added and has_begun(folder):
        require_joins(folder, added.values())
    elif added:
        _require_enough(folder, [*(device.budget for device in roster.devices), *added.values()])
    folders: list[Path] = []
    try:
        for name, budget in added.items():
            own = folder / DEVICE_FOLDERS / name
            # Not in the roster: left by a process that was killed.
            shutil.rmtree(own, ignore_errors=True)
            folders.append(own)
            roster.devices.append(_write_device(own, folder / AUTHORITY, DeviceFile(name, address, budget)))
        write_roster(folder, roster)
    except BaseException:
        for own in folders:
            shutil.rmtree(own, ignore_errors=True)
        raise
    return folders


def _write_device(own: Path, authority: Path, file: DeviceFile) -> DeviceEntry:
    """Create a device's folder, with its key; return its entry in the roster."""
    try:
        certificate = authority.read_bytes()
    except OSError as error:
        raise InvalidInput("authority", authority, f"it cannot be read ({error.strerror})") from None
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    with new_folder(own, private=True) as partial:
        write_whole(partial / DEVICE_KEY, private, mode=_PRIVATE)
        write_whole(partial / AUTHORITY, certificate)
        write_whole(partial / DEVICE_FILE, tomli_w.dumps(msgspec.to_builtins(file)).encode())
        write_whole(partial / "device.pub", public + b"\n")
    return DeviceEntry(name=file.name, budget=file.budget, key=public.decode())


def _require_enough(folder: Path, budgets: Sequence[str]) -> None:
    """Reject a budget that is too small for the dictionary, before anything is written."""
    config = read_config(folder)
    catalogue = Dictionary.read(folder / config.models, trust=config.trusted(folder)).catalogue()
    largest = int(catalogue.storage.max())
    found = np.concatenate([parse_budgets(budget, largest=largest, clients=1) for budget in budgets])
    require_budgets(catalogue, found)


def _make_authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ofms fleet authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    return key, builder.sign(key, hashes.SHA384())


def _make_certificate(
    authority: ec.EllipticCurvePrivateKey, issuer: x509.Certificate, host: str, names: Sequence[x509.GeneralName]
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    builder = _builder(subject, issuer.subject, key)
    for extension in (
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(names),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
    ):
        builder = builder.add_extension(extension, critical=False)
    return key, builder.sign(authority, hashes.SHA384())


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Host names and IP addresses as subject alternative names."""
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            try:
                names.append(x509.DNSName(host))
            except ValueError:
                raise InvalidInput("host", host, "write it in ASCII, as a name or an address") from None
    return names


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Device clocks may be behind.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
