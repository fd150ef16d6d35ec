"""Bounds on the sizes of messages, checked before memory is allocated for them."""

from __future__ import annotations

from pathlib import Path

from ofms.coordinator.files import FLOWER
from ofms.core.messages import Catalogue
from ofms.device.mailbox import MARGIN
from ofms.storage.files import write_whole


def largest_reply(catalogue: Catalogue) -> int:
    """Bytes of the largest reply that the server app accepts: updates of all models."""
    # Some policies fine-tune two copies of a model.
    return 2 * int(catalogue.storage.sum()) + MARGIN


def bound_file(deployment: Path) -> Path:
    """Where the server says how large requests of nodes may be: models may be added while its SuperLink runs."""
    return deployment / FLOWER / "largest-request"


def write_bound(deployment: Path, largest: int) -> None:
    """Let the SuperLink read requests of nodes with replies of up to `largest` bytes."""
    # With Flower's own commands there is no such folder, and nobody reads the bound.
    if bound_file(deployment).parent.is_dir():
        # A reply has other bytes around it.
        write_whole(bound_file(deployment), str(2 * largest).encode())


def read_bound(path: Path) -> int:
    """The bytes of the largest request of a node that the SuperLink reads."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return MARGIN
