"""The supervisor's registration of keys, with a control API that records calls."""

from __future__ import annotations

from pathlib import Path

import pytest

import ofms
from ofms.coordinator.files import DEVICES
from ofms.coordinator.keys import revoke_device
from ofms.coordinator.roster import read_roster
from ofms.flower.supervisor import Supervisor
from tests.deployments import make_fleet


class FakeControl:
    """Registered keys by node."""

    def __init__(self) -> None:
        self.registered: dict[int, bytes] = {}

    def nodes(self) -> dict[bytes, int]:
        return {key: node for node, key in self.registered.items()}

    def register(self, key: bytes, name: str) -> int:
        node = len(self.registered)
        self.registered[node] = key.strip()
        return node

    def unregister(self, node: int) -> None:
        del self.registered[node]


def test_a_mistyped_key_does_not_change_the_registered_devices(tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    supervisor, control = Supervisor(folder, echo=lambda line: None), FakeControl()
    supervisor._control = control  # type: ignore[assignment]
    supervisor._register_devices()
    assert set(control.nodes()) == set(read_roster(folder).public_keys())
    before, roster = dict(control.registered), (folder / DEVICES).read_text()
    for mistake in ("ecdsa-sha2-nistp384 ?", "ecdsa-sha2-nistp999 A", "no key at all: A"):
        (folder / DEVICES).write_text(roster.replace("ecdsa-sha2-nistp384 A", mistake, 1))
        supervisor._register_devices()
        assert control.registered == before
        with pytest.raises(ofms.InvalidInput, match=r"key of device-0 = .*: not a public key"):
            read_roster(folder)
    (folder / DEVICES).write_text(roster)
    revoke_device(folder, "device-1")
    supervisor._register_devices()
    assert len(control.registered) == 2, "changes take effect once the file is corrected"
    supervisor._lock.close()
