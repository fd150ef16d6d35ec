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
