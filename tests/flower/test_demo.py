"""`ofms deploy demo`: real processes, and a fleet that changes while it runs."""

from __future__ import annotations

import pytest

from ofms.flower.demo import run_demo


@pytest.mark.slow
def test_the_demo_agrees_with_the_simulator_while_devices_and_models_come_and_go() -> None:
    lines: list[str] = []
    assert run_demo(lines.append) == 0
    shown = "\n".join(lines)
    assert "client 3 joins" in shown
    assert "is retired; model" in shown
    assert "is added" in shown
