"""Devices that lie about what fine-tuning lost: a comparison counts as much as a correct device's, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.storage.envelope import Envelope
from tests.local_fleet import LocalFleet
from tests.tampering import changed

HOSTILE, CONTROL = 1, 2
SETTINGS = {"fine_tuned": "used", "control_every": 2, "tune_every": 1, "warm_up": 0}


@pytest.fixture
def compared(tmp_path: Path) -> Iterator[tuple[LocalFleet, dict[int, Envelope]]]:
    """A fleet in its first control exchange, and its devices' answers."""
    local = LocalFleet(tmp_path, policy="late-hedge", settings=SETTINGS, interval=1)
    for _ in range(CONTROL):
        for client, envelope in local.grant().items():
            local.coordinator.receive(client, envelope)
        local.coordinator.close()
    yield local, local.grant()
    local.close()


def with_losses(envelope: Envelope, value: float, models: int) -> Envelope:
    """A device's comparisons of so many of its models, replaced; those of the others are 0."""
    losses = envelope.arrays["report.losses"]
    held = np.flatnonzero(~np.isnan(losses[0]))
    assert held.size > 1, "of a device that holds several models"
    found = np.where(np.isnan(losses), np.nan, 0.0)
    found[0, held[:models]] = value
    return changed(envelope, {"report.losses": found})


@pytest.mark.parametrize("value", [1e30, -1e30, 1.01, -1.01, np.inf, -np.inf, np.nan])
def test_comparisons_beyond_what_a_device_can_observe_are_refused(
    value: float, compared: tuple[LocalFleet, dict[int, Envelope]]
) -> None:
    """Of one device, +1e30 would send all models back that are worse at all, and -1e30 would protect any."""
    local, answers = compared
    with pytest.raises(InvalidInput, match="losses: comparisons with first versions must be shares"):
        local.coordinator.receive(HOSTILE, with_losses(answers[HOSTILE], value, 1))
    opened = local.coordinator.opened
    assert opened is not None
    assert HOSTILE not in opened.answers


@pytest.mark.parametrize("value", [0.6, -0.6])
def test_all_models_of_a_device_share_one_comparison(
    value: float, compared: tuple[LocalFleet, dict[int, Envelope]]
) -> None:
    local, answers = compared
    with pytest.raises(InvalidInput, match="must be shares of a number up to 1"):
        local.coordinator.receive(HOSTILE, with_losses(answers[HOSTILE], value, 2))


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_the_largest_comparisons_of_correct_devices_count(
    value: float, compared: tuple[LocalFleet, dict[int, Envelope]]
) -> None:
    """A device whose models made no error at all in one of the versions."""
    local, answers = compared
    assert local.coordinator.receive(HOSTILE, with_losses(answers[HOSTILE], value / 2, 2)) == []
    for client in answers.keys() - {HOSTILE}:
        assert local.coordinator.receive(client, answers[client]) == []
