"""File names of deployments and devices, and how their TOML files are read. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ofms.core.errors import InvalidInput
from ofms.storage.parsing import parse_toml
from ofms.storage.schema import convert

# In a deployment's folder.
SERVER, DEVICES = "server.toml", "devices.toml"
AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY = "ca.key", "server.pem", "server.key"
STATE, STATUS, EVENTS, COMMANDS = "state", "status.json", "events.log", "commands"
APP, FLOWER, DEVICE_FOLDERS, GRAPHS, ADDED = "app", "flower", "devices", "graphs", "added"
# In STATE: written when the server app last asked who is connected.
POLLED = "polled"
# In a device's folder.
AUTHORITY, DEVICE_KEY, DEVICE_FILE = "ca.pem", "device.key", "device.toml"

T = TypeVar("T")


class DeviceFile(msgspec.Struct, forbid_unknown_fields=True):
    """`device.toml`."""

    name: str
    server: str
    budget: str


def read_device(folder: Path) -> DeviceFile:
    """Read a device's folder, as created by `ofms deploy keys`."""
    for name in (DEVICE_FILE, DEVICE_KEY, AUTHORITY):
        if not (folder / name).is_file():
            raise InvalidInput("device", folder, f"{name} is missing; copy the folder that `ofms deploy keys` created")
    entry = read_toml(folder / DEVICE_FILE, DeviceFile)
    split_address(entry.server)
    return entry


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("fleet.example.com:9092")
    ('fleet.example.com', 9092)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput("address", address, "write HOST:PORT")
    return host.strip("[]"), int(port)


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file into a struct, or reject it with a one-line error."""
    try:
        return convert(parse_toml(path.read_bytes()), kind)
    except FileNotFoundError:
        remedy = "not a deployment; `ofms deploy keys` creates one"
        raise InvalidInput("deployment", path.parent, remedy) from None
    except InvalidInput:
        raise
    except (ValueError, OSError) as error:
        raise InvalidInput("file", path, f"it cannot be read ({error}); correct it") from None
