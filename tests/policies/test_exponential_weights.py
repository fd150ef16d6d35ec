"""Exponential weights at all rates."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.policies.exponential_weights import mixed, softmax


@pytest.mark.parametrize("rate", [1e-9, 1.0, 50.0, 1e6])
def test_weights_and_mixed_losses_at_any_rate(rate: float) -> None:
    sums = np.random.default_rng(0).random((5, 3)) * 20
    least = sums.min(axis=0)
    rates = np.full(3, rate)
    exponents = -rate * (sums - least)
    expected = np.exp(np.maximum(exponents, -2000))
    weights = softmax(sums - least, rates)
    assert weights == pytest.approx(expected / expected.sum(axis=0), abs=1e-15)
    assert (weights >= 0).all()
    assert not weights[exponents < -700].any(), "what underflows is 0"
    assert mixed(sums - least, least, rates) == pytest.approx(least - np.log(expected.sum(axis=0)) / rate)


def test_equal_sums_have_equal_weights() -> None:
    assert softmax(np.zeros((4, 2)), np.array([1.0, 1e6])).tolist() == np.full((4, 2), 0.25).tolist()
    assert mixed(np.zeros((4, 1)), np.ones(1), np.array([2.0])) == pytest.approx(1 - np.log(4) / 2)


def test_a_first_client_without_losses_says_nothing_about_the_others() -> None:
    """Sums 0 and ln 3 at rate 1 are weights 3/4 and 1/4."""
    above = np.array([[0.0, 0.0], [0.0, np.log(3)]])
    assert softmax(above, np.ones(2)) == pytest.approx(np.array([[0.5, 0.75], [0.5, 0.25]]))
    assert mixed(above, np.zeros(2), np.ones(2)) == pytest.approx(-np.log([2, 4 / 3]))


def test_no_clients_have_no_weights() -> None:
    assert softmax(np.zeros((3, 0)), np.zeros(0)).shape == (3, 0)
    assert mixed(np.zeros((3, 0)), np.zeros(0), np.zeros(0)).shape == (0,)


def test_memory_that_is_given_holds_the_result() -> None:
    above, memory = np.array([[0.0], [2.0]]), np.full((2, 1), 7.0)
    assert softmax(above, np.ones(1), memory) is memory
    assert memory == pytest.approx(np.array([[1.0], [np.exp(-2)]]) / (1 + np.exp(-2)))
