"""Which paths of the SuperLink are open to other machines."""

from __future__ import annotations

import pytest

from ofms.flower.superlink import allowed


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/v1/fleetly", "/v1/fleet/../control/x"],
)
def test_other_paths_than_the_fleets_are_for_this_machine_alone(path: str) -> None:
    assert not allowed(path, ("192.168.0.9", 1))
    assert not allowed(path, None)
    assert allowed(path, ("127.0.0.1", 1))


def test_the_fleets_paths_are_open_to_other_machines() -> None:
    assert allowed("/v1/fleet/activate-node", ("192.168.0.9", 1))
