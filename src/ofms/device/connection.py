"""A device's own connection to its server, instead of another process that carries its messages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ofms.device.device import Device

# By name, and imported only if a device connects: this package knows no network.
_NODE = "ofms.flower.node"


class Connection(Protocol):
    """Carries messages between a device and its server, from `start` to `stop`."""

    def start(self, device: Device) -> None: ...

    def stop(self) -> None: ...


def make_connection(folder: Path, budget: int) -> Connection:
    """A connection with the key and the server of a device's folder; raises `InvalidInput` if it is not one."""
    connection: Connection = import_module(_NODE).Node(folder, budget)
    return connection
