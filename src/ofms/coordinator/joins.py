"""Whether new devices can join a fleet that has begun, tried before their keys are made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from ofms.coordinator.checkpoint import Checkpoint
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.persistent_events import join_of, waiting_devices
from ofms.core.errors import InvalidInput


def has_begun(folder: Path) -> bool:
    """Whether the server of a deployment has written a checkpoint: its fleet may differ from `server.toml`."""
    return Checkpoint(folder).path.exists()


def require_joins(folder: Path, budgets: Iterable[str]) -> None:
    """Reject budgets with which new devices could not join, tried on a copy of the server's last checkpoint.

    The models in use and the bandwidth in force may not be those with which the deployment began.
    """
    deployment = Deployment(folder)
    copied = PersistentCoordinator(deployment, read_only=True).coordinator
    devices = deployment.roster.devices
    for client in waiting_devices(copied, devices):
        with contextlib.suppress(InvalidInput):
            copied.apply(join_of(copied, client, devices[client].budget))
    for client, budget in enumerate(budgets, len(devices)):
        copied.apply(join_of(copied, client, budget))
