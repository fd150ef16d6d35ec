"""A device that is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.device.device import Device
from tests.devices import granted_device


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device in its first exchange, which has four samples; its coordinator goes with it."""
    device, coordinator = granted_device(tmp_path, "ofms-ft")
    device.coordinator = coordinator  # type: ignore[attr-defined]
    return device
