"""A device in its first exchange, which has four samples, and its coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ofms.coordinator.coordinator import Coordinator
from ofms.device.device import Device
from tests.devices import granted_device


@pytest.fixture
def granted(tmp_path: Path) -> Iterator[tuple[Device, Coordinator]]:
    device, coordinator = granted_device(tmp_path, "ofms-ft")
    yield device, coordinator
    device.close()


@pytest.fixture
def device(granted: tuple[Device, Coordinator]) -> Device:
    return granted[0]


@pytest.fixture
def coordinator(granted: tuple[Device, Coordinator]) -> Coordinator:
    return granted[1]
