"""Pools of outputs, some of which are out of range, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.core.pooling import (
    LARGEST,
    SMOOTHING,
    Pool,
    divergence,
    out_of_range,
    pool_gradient,
    pool_loss,
    poolable,
    with_offset,
    within_range,
)

nan, inf = np.nan, np.inf


def test_finite_outputs_are_returned_as_they_are() -> None:
    """Also if their sum overflows, without a warning."""
    for outputs in (np.array([[1.0], [2.0]]), np.full((3, 1), 1.5e308), np.full((3, 2), 1.5e308)):
        assert within_range(outputs) is outputs


def test_values_that_are_not_finite_become_the_largest_ones() -> None:
    values = np.array([[[nan], [inf], [-inf], [1e39], [3.0]]])
    assert within_range(values).tolist() == [[[LARGEST], [LARGEST], [-LARGEST], [LARGEST], [3.0]]]
    logits = np.array([[[nan, 1.0], [inf, -inf]]])
    assert within_range(logits).tolist() == [[[-LARGEST, 1.0], [LARGEST, -LARGEST]]]
    assert within_range(np.array([[inf, -inf]])).tolist() == [[LARGEST, -LARGEST]], "the sum is no number"


def test_only_values_are_out_of_range() -> None:
    """Logits are mixed as probabilities."""
    assert out_of_range(np.array([[[LARGEST], [-LARGEST]], [[2.0], [0.0]]])).tolist() == [[True, True], [False, False]]
    for classes in (2, 3):
        logits = out_of_range(np.full((4, 5, classes), LARGEST))
        assert (logits.shape, logits.dtype.name, bool(logits.any())) == ((4, 5), "bool", False)


def test_a_pool_leaves_out_what_is_out_of_range() -> None:
    """Three models with weights 0.5, 0.3, 0.2 for the first of two clients, and two samples.

    On the first sample, the second model is out of range: (0.5 · 1 + 0.2 · 4) / 0.7. On the second sample the first and
    the third are: 3. The second client uses the first two models, both out of range on the first sample.
    """
    pool = Pool((2, 2, 1))
    pool.add(slice(None), np.array([0.5, 0.5]), np.array([[[1.0], [LARGEST]], [[LARGEST], [6.0]]]))
    pool.add(np.array([0, 1]), np.array([0.3, 0.5]), np.array([[[-LARGEST], [3.0]], [[LARGEST], [8.0]]]))
    pool.add(np.array([True, False]), np.array([0.2]), np.array([[[4.0], [LARGEST]]]))
    assert pool.value() == pytest.approx(np.array([[[1.3 / 0.7], [3.0]], [[LARGEST], [7.0]]]))


def test_a_pool_within_range_is_the_weighted_sum() -> None:
    pool = Pool((2, 1, 2))
    pool.add(slice(None), np.array([0.25, 1.0]), np.array([[[1.0, -2.0]], [[3.0, 0.0]]]))
    pool.add(np.array([0]), np.array([0.75]), np.array([[[5.0, 2.0]]]))
    assert pool.value().tolist() == [[[4.0, 1.0]], [[3.0, 0.0]]]


def test_offsets_are_added_within_range() -> None:
    pools = np.array([[[1.0], [LARGEST]], [[2.0], [-LARGEST]]])
    found = with_offset(pools, np.array([[0.5], [1e37]]))
    assert found.tolist() == [[[1.5], [LARGEST]], [[1e37], [-LARGEST]]]
    assert with_offset(pools, None) is pools


def test_log_probabilities_of_each_sample_by_itself() -> None:
    """Logits 0, ln 3 are 1/4, 3/4, smoothed; so they are 1,000 higher, and so are single ones in half precision."""
    logits = np.array([[0.0, np.log(3)], [1000.0, 1000.0 + np.log(3)], [-2000.0, 0.0]])
    expected = (1 - SMOOTHING) * np.array([[0.25, 0.75], [0.25, 0.75], [0.0, 1.0]]) + SMOOTHING / 2
    assert np.exp(poolable(logits)) == pytest.approx(expected)
    half = poolable(np.array([[1.0, 2.0]], dtype=np.float16))
    assert half.dtype.name == "float64"
    assert half == pytest.approx(poolable(np.array([[1.0, 2.0]])))
    assert poolable(np.array([[1.0]], dtype=np.float16)).dtype.name == "float64"


def test_loss_gradient_and_divergence_of_classes_by_hand() -> None:
    """Pools ln 2, ln 6 and ln 1, ln 1 have the probabilities 1/4, 3/4 and 1/2, 1/2.

    D from the second to the first, p·(z - c) less the difference of ln Σ exp: ln 8 - ln 2 - (ln 2 + ln 6)/2. From the
    first to the second: ln 2 - ln 8 + ln 2/4 + 3/4 ln 6.
    """
    pools, targets = np.log(np.array([[2.0, 6.0], [1.0, 1.0]])), np.array([0, 1])
    assert pool_loss(pools, targets) == pytest.approx(np.log([4, 2]))
    assert pool_gradient(pools, targets) == pytest.approx(np.array([[-0.75, 0.75], [0.5, -0.5]]))
    assert divergence(pools, pools[::-1]) == pytest.approx(
        np.array(
            [
                np.log(8) - np.log(2) - (np.log(2) + np.log(6)) / 2,
                np.log(2) - np.log(8) + np.log(2) / 4 + 0.75 * np.log(6),
            ]
        )
    )
    assert divergence(pools, pools).tolist() == pytest.approx([0, 0], abs=1e-15)
    assert divergence(np.array([[3.0], [4.0]]), np.array([[1.0], [1.0]])).tolist() == [4, 9]


def test_divergences_of_several_models_from_a_pool_of_each_sample() -> None:
    """[M, K, C] from [M, 1, C]."""
    pools = np.log(np.array([[[2.0, 6.0], [1.0, 1.0]], [[1.0, 3.0], [5.0, 5.0]]]))
    centre = np.log(np.array([[[1.0, 1.0]], [[2.0, 6.0]]]))
    expected = [[float(divergence(one, each[0])) for one in some] for some, each in zip(pools, centre, strict=True)]
    assert divergence(pools, centre) == pytest.approx(np.array(expected))
