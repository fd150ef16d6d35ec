"""The devices of a deployment: `devices.toml`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from ofms.coordinator.files import DEVICES, STATE, read_toml
from ofms.core.errors import InvalidInput
from ofms.storage.files import write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class DeviceEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A device; its position in the roster is its permanent client number, so revoked entries stay."""

    name: str
    budget: str
    key: str
    revoked: bool = False


class Roster(msgspec.Struct, forbid_unknown_fields=True):
    """`devices.toml`."""

    devices: list[DeviceEntry] = []

    def public_keys(self) -> dict[bytes, int]:
        """Client numbers by public key."""
        return {public_key_pem(device): client for client, device in enumerate(self.devices)}


def read_roster(folder: Path) -> Roster:
    """Read the devices of a deployment; reject invalid keys, and names and keys that occur twice."""
    path = folder / DEVICES
    roster = read_toml(path, Roster) if path.exists() else Roster()
    names: set[str] = set()
    for device in roster.devices:
        if require_name(device.name) in names:
            raise InvalidInput(f"{DEVICES}: name", device.name, "two devices have it; give each its own")
        names.add(device.name)
    # One of two devices with the same key would never be known.
    if len(roster.public_keys()) < len(roster.devices):
        raise InvalidInput(f"{DEVICES}: key", "repeated", "two devices have the same key; restore each from device.pub")
    return roster


def read_last_roster(folder: Path) -> tuple[Roster, str]:
    """The devices of a deployment; if they are invalid, the last valid ones of its server, and why.

    A server that restarts while `devices.toml` has a mistake continues with the devices that it had.
    """
    try:
        return read_roster(folder), ""
    except InvalidInput as error:
        kept = folder / STATE
        if not (kept / DEVICES).is_file():
            raise
        return read_roster(kept), str(error)


def write_roster(folder: Path, roster: Roster) -> None:
    write_whole(folder / DEVICES, tomli_w.dumps(msgspec.to_builtins(roster)).encode())


def require_name(name: str) -> str:
    """Reject a device name that is not a valid folder name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("device", name, "use letters, digits, '.', '_' and '-', at most 64")
    return name


def public_key_pem(device: DeviceEntry) -> bytes:
    """The public key of a device in PEM."""
    try:
        key = serialization.load_ssh_public_key(device.key.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        shown = device.key if len(device.key) <= 40 else f"{device.key[:40]}…"
        remedy = f"not a public key ({error}); restore it from {device.name}'s device.pub"
        raise InvalidInput(f"{DEVICES}: key of {device.name}", shown, remedy) from None
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem.strip()
