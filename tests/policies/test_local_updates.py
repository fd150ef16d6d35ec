"""When clients compare versions, and on which samples they fine-tune and adapt."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.core.schedule import Schedule, Window
from ofms.policies.local_updates import (
    Adapted,
    Epochs,
    GradientStep,
    LocalUpdate,
    adaptation_window_of,
    is_control,
    last_control,
    tuning_window_of,
)

STEP = GradientStep(0.1, window=3, warm_up=2)
EPOCHS = Epochs(0.1, epochs=2, batch_size=4, window=3, warm_up=3)
ADAPTED = Adapted(0.1, adaptation_rate=0.2, epochs=2, batch_size=4, window=3, warm_up=2)
# Exchanges of rounds 0 and 1, 2 and 3, 4 and 5, …
PAIRS = Schedule(20, interval=2)


def of(window: Window | None) -> tuple[int, list[float]] | None:
    return None if window is None else (window.first, window.weights.tolist())


@pytest.mark.parametrize(
    ("every", "controls"), [(1, [2, 3, 4, 5, 6, 7]), (2, [2, 3, 5, 7]), (3, [2, 4, 7]), (4, [3, 5]), (6, [4, 7])]
)
def test_the_first_control_exchange_is_at_the_earliest_the_third(every: int, controls: list[int]) -> None:
    step = GradientStep(0.1, window=3, warm_up=0, control_every=every)
    assert [exchange for exchange in range(-1, 8) if is_control(step, exchange)] == controls
    before = [max((each for each in controls if each < exchange), default=-1) for exchange in range(9)]
    assert [last_control(step, exchange) for exchange in range(9)] == before


def test_without_fine_tuning_or_comparisons_there_is_no_control_exchange() -> None:
    for local in (None, STEP, EPOCHS, ADAPTED, GradientStep(0.0, window=3, warm_up=0, control_every=1)):
        assert not any(is_control(local, exchange) for exchange in range(8))
        assert last_control(local, 8) == -1


def test_a_gradient_step_sums_the_windows_of_its_rounds() -> None:
    """Rounds 4 and 5: the means over rounds 2 to 4 and 3 to 5."""
    window = tuning_window_of(STEP, PAIRS, 2)
    assert window is not None
    assert window.first == 2
    assert window.weights == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert tuning_window_of(STEP, PAIRS, 0) is None


@pytest.mark.parametrize("local", [EPOCHS, Adapted(0.1, 0.2, epochs=2, batch_size=4, window=3, warm_up=3)])
def test_epochs_run_over_the_last_samples_equally_weighted(local: LocalUpdate) -> None:
    """The exchange's own included; none before the warm-up is over, which is within the second exchange."""
    found = [of(tuning_window_of(local, PAIRS, exchange)) for exchange in range(4)]
    assert found == [None, (1, [1 / 3] * 3), (3, [1 / 3] * 3), (5, [1 / 3] * 3)]


def test_clients_adapt_to_the_samples_before_the_exchange() -> None:
    """From the warm-up on: two samples before round 2, the last three before round 4."""
    found = [of(adaptation_window_of(ADAPTED, PAIRS, exchange)) for exchange in range(4)]
    assert found == [None, (0, [0.5, 0.5]), (1, [1 / 3] * 3), (3, [1 / 3] * 3)]
    at_once = Adapted(0.1, 0.2, epochs=2, batch_size=4, window=3, warm_up=0)
    assert adaptation_window_of(at_once, PAIRS, 0) is None, "there are no samples yet"
    for local in (None, STEP, EPOCHS):
        assert adaptation_window_of(local, PAIRS, 2) is None


def test_nothing_is_fine_tuned_at_rate_0() -> None:
    for local in (None, GradientStep(0.0, window=3, warm_up=0), Epochs(0.0, 2, 4, window=3, warm_up=0)):
        assert tuning_window_of(local, PAIRS, 3) is None
    assert np.isclose(tuning_window_of(STEP, PAIRS, 3).weights.sum(), 2)  # type: ignore[union-attr]
