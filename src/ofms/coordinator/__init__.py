"""The server of a fleet: exchanges, validation, checkpoints, keys, status, scheduling; the network is a `Transport`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
    "Coordinator": "ofms.coordinator.coordinator",
}


__getattr__ = exported(__name__, _MODULES)
