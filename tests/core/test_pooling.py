"""Pools of outputs, some of which are out of range, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ofms.core.pooling import LARGEST, Pool, out_of_range, with_offset, within_range

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
        assert (logits.shape, logits.dtype.name, logits.any()) == ((4, 5), "bool", False)


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
    found = with_offset(pools, np.array([[0.5], [-1.0]]))
    assert found.tolist() == [[[1.5], [LARGEST]], [[1.0], [-LARGEST]]]
    assert with_offset(pools, None) is pools
