"""Windows, bounds and rates against values computed by hand."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.core.rates import resolve_rate
from ofms.core.regret_bounds import (
    client_bound,
    largest_second_moment,
    sharp_learning_rate,
    tuned_fine_tuning_rate,
    tuned_learning_rate,
)
from ofms.core.schedule import Schedule, past_window, tuning_window
from ofms.core.selection_loss import selection_loss
from ofms.core.uplink import most_groups


@given(st.integers(1, 300), st.integers(1, 40))
def test_exchanges_cover_every_round_once(rounds: int, interval: int) -> None:
    schedule = Schedule(rounds, interval)
    covered = [step for exchange in range(schedule.exchanges) for step in range(*schedule.span(exchange))]
    assert covered == list(range(rounds))
    assert [schedule.includes(exchange) for exchange in (0, schedule.exchanges - 1, schedule.exchanges)] == [
        True,
        True,
        False,
    ]


@given(st.integers(0, 10**12), st.integers(1, 40))
def test_without_a_horizon_every_exchange_has_all_of_its_rounds(exchange: int, interval: int) -> None:
    schedule = Schedule(None, interval)
    assert schedule.includes(exchange)
    assert schedule.span(exchange) == (exchange * interval, (exchange + 1) * interval)
    assert schedule.span(exchange) == Schedule((exchange + 1) * interval, interval).span(exchange)
    with pytest.raises(InvalidInput, match="rounds = None: the horizon T is needed here; give it"):
        _ = schedule.exchanges


@given(st.integers(0, 100), st.integers(1, 10), st.integers(1, 60), st.integers(0, 60))
def test_a_window_sums_the_mean_losses_of_the_interval(first: int, interval: int, length: int, warm_up: int) -> None:
    span = (first, first + interval)
    losses = np.random.default_rng(0).random(first + interval)
    slow = sum(losses[max(0, step - length + 1) : step + 1].mean() for step in range(*span) if step >= warm_up)
    window = tuning_window(span, length, warm_up)
    fast = 0.0 if window is None else float(losses[window.first : window.stop] @ window.weights)
    assert fast == pytest.approx(slow, rel=1e-12)


def test_the_published_window_is_the_51_samples_from_round_50_on() -> None:
    assert tuning_window((49, 50), 51, 50) is None
    window = tuning_window((50, 51), 51, 50)
    assert window is not None
    assert (window.first, window.stop) == (0, 51)
    images = tuning_window((50, 51), 50, 50)
    assert images is not None
    assert (images.first, images.stop) == (1, 51)


def test_past_samples_have_equal_weights_and_may_be_missing() -> None:
    assert past_window(0, 3) is None
    for before, length, first in ((1, 3, 0), (5, 3, 2), (5, 1, 4)):
        window = past_window(before, length)
        assert window is not None
        assert (window.first, window.stop) == (first, before)
        assert window.weights.tolist() == [1 / (before - first)] * (before - first)


def test_a_loss_that_rounding_made_negative_counts_as_zero() -> None:
    assert selection_loss(np.array([-1e-9, 2.0]), "clip").tolist() == [0.0, 1.0]


@given(st.integers(2, 100), st.integers(1, 50), st.integers(1, 10_000), st.integers(1, 20))
def test_the_tuned_rate_minimises_the_theorems_bound(models: int, mu: int, rounds: int, interval: int) -> None:
    rate = tuned_learning_rate(models=models, fewest_clusters=mu, rounds=rounds, interval=interval)

    def bound(at: float) -> float:
        return client_bound(
            models=models, learning_rate=at, fewest_clusters=mu, most_clusters=mu, rounds=rounds, interval=interval
        ).theorem

    assert bound(rate) == pytest.approx(2 * math.sqrt(math.log(models) * mu * interval * rounds))
    assert bound(rate) <= min(bound(rate * 1.01), bound(rate * 0.99))


@given(st.integers(2, 100), st.integers(1, 50), st.integers(1, 10_000), st.integers(1, 20))
def test_the_sharp_rate_minimises_the_sharp_bound(models: int, most: int, rounds: int, interval: int) -> None:
    rate = sharp_learning_rate(models=models, most_clusters=most, rounds=rounds, interval=interval)

    def bound(at: float) -> float:
        return client_bound(
            models=models, learning_rate=at, fewest_clusters=most, most_clusters=most, rounds=rounds, interval=interval
        ).sharp

    second_moment = largest_second_moment(models, most)
    assert bound(rate) == pytest.approx(math.sqrt(2 * second_moment * interval * rounds * math.log(models)))
    assert bound(rate) <= min(bound(rate * 1.01), bound(rate * 0.99))
    assert second_moment <= min(models, most)


def test_client_bounds_by_hand() -> None:
    """K = 20, B = 2, T = 400, so M = μ = 19 and G = 10: at the paper's rate, then at the sharp one."""
    papers = math.sqrt(math.log(20) / (19 * 400))
    at_papers = client_bound(models=20, learning_rate=papers, fewest_clusters=19, most_clusters=19, rounds=400)
    assert at_papers.theorem == pytest.approx(2 * math.sqrt(19 * 400 * math.log(20)))
    assert at_papers.sharp == pytest.approx((1 + 5 / 19) * math.sqrt(19 * 400 * math.log(20)))
    sharp = sharp_learning_rate(models=20, most_clusters=19, rounds=400)
    best = client_bound(models=20, learning_rate=sharp, fewest_clusters=19, most_clusters=19, rounds=400)
    assert best.sharp == pytest.approx(154.8, abs=0.05)
    deviation = math.sqrt(2 * 18 * 400 * math.log(20)) + 18 * math.log(20) / 3
    assert best.realised == pytest.approx(best.sharp + deviation)


def test_the_number_of_groups_is_that_of_clients_over_those_who_fit() -> None:
    assert [most_groups(5, need, 5) for need in (0, 1, 2, 3, 5, 6)] == [1, 1, 3, 5, 5, 5]


def test_the_tuned_fine_tuning_rate_is_the_papers() -> None:
    assert tuned_fine_tuning_rate(most_groups=2, fewest_clusters=5, rounds=200) == pytest.approx(1 / math.sqrt(2000))


@pytest.mark.parametrize("value", ["fast", "10/sqrt(N)", -1, float("nan"), "-3/sqrt(T)", "inf"])
def test_an_invalid_rate_is_refused(value: float | str) -> None:
    with pytest.raises(InvalidInput, match="learning_rate"):
        resolve_rate("learning_rate", value, rounds=200, tuned=0.1)


@pytest.mark.parametrize("value", ["tuned", "10/sqrt(T)"])
def test_a_rate_that_depends_on_the_horizon_is_refused_without_one(value: str) -> None:
    def tuned() -> float:
        raise AssertionError("a tuned rate is computed only if it is used")

    message = (
        f"fine_tuning_rate = {value}: it depends on the horizon T; "
        "give rounds, or a rate as a number, or use a policy that needs no horizon"
    )
    with pytest.raises(InvalidInput, match=f"^{re.escape(message)}$"):
        resolve_rate("fine_tuning_rate", value, rounds=None, tuned=tuned)
    assert resolve_rate("fine_tuning_rate", 0.3, rounds=None, tuned=tuned) == 0.3
    assert resolve_rate("fine_tuning_rate", "0.3", rounds=None, tuned=tuned) == 0.3
    with pytest.raises(InvalidInput, match=r"fine_tuning_rate = poem: give a number"):
        resolve_rate("fine_tuning_rate", "poem", rounds=None, tuned=tuned)
