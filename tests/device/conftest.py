"""A device that is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.device.device import Device
from tests.devices import granted_device


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device in its first exchange, which has four samples; its hub goes with it."""
    device, hub = granted_device(tmp_path, "ofms-ft")
    device.hub = hub  # type: ignore[attr-defined]
    return device
