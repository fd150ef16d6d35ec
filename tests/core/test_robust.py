"""Robust totals of updates: equal to the sum without disagreement, and bounded by the honest ones under attack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ofms
from ofms.core import robust
from ofms.core.attacks import Attack
from ofms.core.draws import Draws
from ofms.core.robust import (
    Aggregation,
    clip_factors,
    moderate_votes,
    norms,
    robust_losses,
    scaled_losses,
    total,
)
from ofms.core.usual_norms import UsualNorms

KINDS = ["sum", "median", "trimmed-mean", "trimmed-mean:0.1", "clipped", "clipped:2.5"]


def updates_of(clients: int, values: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, values))


@pytest.mark.parametrize("text", KINDS)
@given(clients=st.integers(1, 12), values=st.integers(1, 9), seed=st.integers(0, 99))
def test_equal_updates_give_their_sum(text: str, clients: int, values: int, seed: int) -> None:
    one = updates_of(1, values, seed)
    assert total(np.repeat(one, clients, axis=0), Aggregation.of(text)) == pytest.approx(clients * one[0])


@pytest.mark.parametrize("text", KINDS)
@given(clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_the_order_of_clients_does_not_matter(text: str, clients: int, seed: int) -> None:
    updates, aggregation = updates_of(clients, 5, seed), Aggregation.of(text)
    assert total(updates[::-1], aggregation) == pytest.approx(total(updates, aggregation))


def shortened(updates: np.ndarray, aggregation: Aggregation, usual: float | None = None) -> np.ndarray:
    lengths = norms(updates)
    return total(updates, aggregation, clip_factors(lengths, aggregation, usual or float(np.median(lengths))))


@pytest.mark.parametrize("text", ["median", "trimmed-mean", "clipped"])
@given(honest=st.integers(7, 12), hostile=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_minority_moves_a_robust_total_no_farther_than_the_honest_updates(
    text: str, honest: int, hostile: int, seed: int
) -> None:
    """3 of 10 at most: of each coordinate within the honest range; clipped, within the honest norms."""
    updates = updates_of(honest + hostile, 5, seed)
    updates[honest:] *= 1e6
    mine, count, aggregation = updates[:honest], honest + hostile, Aggregation.of(text)
    if text == "clipped":
        found = shortened(updates, aggregation)
        assert np.linalg.norm(found) <= count * np.linalg.norm(mine, axis=1).max()
    else:
        found = total(updates, aggregation)
        assert (found <= count * mine.max(axis=0) + 1e-9).all()
        assert (found >= count * mine.min(axis=0) - 1e-9).all()


@pytest.mark.parametrize("text", ["median", "trimmed-mean", "clipped:2"])
def test_a_hostile_majority_of_an_exchange_is_bounded_by_what_is_usual(text: str) -> None:
    updates = 1e6 * updates_of(6, 5, 1)
    updates[0] = 1e-6 * updates[0]
    assert np.linalg.norm(shortened(updates, Aggregation.of(text), usual=0.1)) <= 6 * 3 * 0.1 * np.sqrt(5)


def test_the_usual_norm_is_that_of_most_exchanges() -> None:
    usual = UsualNorms()
    found = [usual.add(1, np.array(each)) for each in ([2.0], [90.0, 95.0], [3.0, 4.0, 5.0], [70.0], [3.0], [80.0])]
    assert found == [0.0, 0.0, 2.0, 2.0, 3.0, 3.0]
    again = UsualNorms()
    again.load_arrays(usual.to_arrays("a."), "a.")
    assert again.add(1, np.array([1.0])) == usual.add(1, np.array([1.0]))


def test_totals_by_hand() -> None:
    updates = np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [0.0, -2.0]])
    assert total(updates, Aggregation.of("sum")).tolist() == [9.0, 11.0]
    assert total(updates, Aggregation.of("median")).tolist() == [4 * 1.5, 4 * 2.5]
    assert total(updates, Aggregation.of("trimmed-mean:0.25")).tolist() == [4 * 1.5, 4 * 2.5]
    assert total(updates, Aggregation.of("trimmed-mean:0.2")).tolist() == [9.0, 11.0], "a fifth of four is none"
    # Norms 5, 1, 10, 2: the median is 3.5.
    assert shortened(updates, Aggregation.of("clipped")) == pytest.approx([0.7 * 3 + 0.35 * 6, 0.7 * 4 + 0.35 * 8 - 1])


@pytest.mark.parametrize("text", KINDS)
def test_blocks_of_coordinates_change_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, aggregation = updates_of(7, 50, 3), Aggregation.of(text)
    whole = total(updates, aggregation)
    monkeypatch.setattr(robust, "_VALUES_AT_ONCE", 20)
    assert total(updates, aggregation).tobytes() == whole.tobytes()


def test_a_lie_about_losses_moves_neither_their_sum_nor_a_vote_far() -> None:
    losses = np.array([[1.0, np.nan], [2.0, 5.0], [1e30, np.nan], [1.5, np.nan]])
    reported = np.isfinite(losses)
    made = robust_losses(losses, reported, Aggregation.of("median"))
    assert np.where(reported, made, 0.0).sum(axis=0).tolist() == [4 * 1.75, 5.0]
    assert np.isnan(made[~reported]).all()
    clipped = robust_losses(losses, reported, Aggregation.of("clipped"))
    assert clipped[:, 0].tolist() == [1.0, 2.0, 3 * 1.75, 1.5]
    factors = {0: (np.array([4, 8]), np.array([0.5, 0.1]))}
    assert scaled_losses(losses, np.array([2, 4, 6, 8]), factors)[:, 0] == pytest.approx([1.0, 1.0, 1e30, 0.15])
    votes = moderate_votes(np.array([[0.3, np.nan], [-0.1, 0.0], [0.2, np.nan], [-1e30, np.nan]]))
    assert votes[:, 0] == pytest.approx([0.25, -0.1, 0.2, -0.25])
    assert votes[1, 1] == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean", "aggregation = mean: "),
        ("median:2", "aggregation = median:2: median takes no number; use median"),
        ("trimmed-mean:0.5", "aggregation = trimmed-mean:0.5: give the share at either end, from 0 and below 0.5"),
        ("trimmed-mean:many", "give the share at either end"),
        ("clipped:0", "aggregation = clipped:0: give a multiple of the usual norm, above 0"),
        ("clipped:nan", "give a multiple of the usual norm"),
    ],
)
def test_a_bad_aggregation_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ofms.InvalidInput) as caught:
        Aggregation.of(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("noise:0.1", "attack = noise:0.1"), ("random:2", "between 0 and 1")])
def test_a_bad_attack_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ofms.InvalidInput) as caught:
        Attack.of(text)
    assert message in str(caught.value)


def test_hostile_updates_are_what_a_server_accepts() -> None:
    updates, clients = updates_of(4, 6, 0), np.array([1, 3, 4, 9])
    hostile = np.isin(np.arange(10), [3, 9])
    for kind in ("sign-flip", "random", "largest"):
        made = Attack.of(f"{kind}:0.2").distorted(updates, clients, hostile, 2, most=7.0, draws=Draws(1, 5))
        assert (made[[0, 2]] == updates[[0, 2]]).all()
        for place in (1, 3):
            if kind == "sign-flip":
                assert made[place] == pytest.approx(-updates[place])
            else:
                assert np.linalg.norm(made[place]) == pytest.approx(7.0)
            if kind == "largest":
                assert made[place] @ updates[place] == pytest.approx(-7.0 * np.linalg.norm(updates[place]))
    assert Attack.of("random:0.1").hostile(3, 50).sum() == 5
    assert (Attack.of("random:0.1").hostile(3, 50) <= Attack.of("random:0.3").hostile(3, 50)).all()
