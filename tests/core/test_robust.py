"""Robust totals of updates: equal to the sum without disagreement, and bounded by the honest ones under attack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ofms
from ofms.core import robust
from ofms.core.attacks import Attack
from ofms.core.draws import Draws, Purpose
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


@pytest.mark.parametrize(
    "text", ["largest", "largest:", "largest:x", "largest:0", "largest:1", "largest:0.1:0.2", "lost:1"]
)
def test_an_attack_needs_a_share_between_0_and_1(text: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=r"^attack = "):
        Attack.of(text)


@pytest.mark.parametrize(
    "text",
    [
        "sum:1",
        "median:2",
        "trimmed-mean:0.5",
        "trimmed-mean:-0.1",
        "trimmed-mean:x",
        "clipped:0",
        "clipped:inf",
        "clipped:x",
    ],
)
def test_an_aggregation_needs_a_number_in_its_range(text: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=r"^aggregation = "):
        Aggregation.of(text)


def test_aggregations_in_words() -> None:
    for text in ("sum", "median", "trimmed-mean:0.35", "clipped:1", "clipped:2.5"):
        assert str(Aggregation.of(text)) == text
    assert Aggregation.of(None) == Aggregation.of("sum") == Aggregation("sum", 0.0)
    assert Aggregation.of("trimmed-mean:0") == Aggregation("trimmed-mean", 0.0)
    assert str(Aggregation("trimmed-mean", 0.0)) == "trimmed-mean"


def test_what_hostile_clients_upload_by_hand() -> None:
    """Of the clients 4, 7 and 5, the last two are hostile; 4 · (3, 4) / 5 = (2.4, 3.2)."""
    updates = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    clients, hostile = np.array([4, 7, 5]), np.isin(np.arange(8), [5, 7])
    made = {
        kind: Attack(kind, 0.1).distorted(updates, clients, hostile, 2, most=4.0, draws=Draws(3, 6))
        for kind in ("sign-flip", "largest", "random")
    }
    assert made["sign-flip"].tolist() == [[3, 4], [-3, -4], [0, 0]]
    assert made["largest"] == pytest.approx(np.array([[3, 4], [-2.4, -3.2], [0, 0]]))
    for place, client in ((1, 7), (2, 5)):
        direction = Draws(3, 6).normal(Purpose.ATTACK, client, 2, 2)
        assert made["random"][place] == pytest.approx(4 * direction / np.linalg.norm(direction), rel=1e-6)
    small = Attack("largest", 0.1).distorted(updates / 10, clients, hostile, 2, most=4.0, draws=Draws(3, 6))
    assert small[1] == pytest.approx(np.array([-2.4, -3.2])), "also those of a norm below 1"
    assert Attack("random", 0.1).distorted(updates, clients, ~hostile, 2, most=4.0, draws=Draws(3, 6))[1].tolist() == [
        3,
        4,
    ]
    assert updates[1].tolist() == [3, 4], "what was given is not changed"


def test_hostile_clients_are_those_of_the_first_numbers() -> None:
    drawn = Draws(3, 0).uniform(Purpose.ATTACK, np.arange(10))
    assert np.flatnonzero(Attack("largest", 0.3).hostile(3, 10)).tolist() == sorted(np.argsort(drawn)[:3].tolist())


def test_robust_totals_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns at a time; a trimmed mean of 0.4 of two clients leaves none out, of five two at either end."""
    monkeypatch.setattr(robust, "_VALUES_AT_ONCE", 15)
    updates = np.array([[1, 5, 0, 2], [2, 4, 0, 2], [3, 3, 0, 2], [4, 2, 7, 2], [90, -9, 8, 2]], dtype=np.float32)
    assert total(updates, Aggregation.of("trimmed-mean:0.4")).tolist() == [15, 15, 0, 10]
    assert total(updates, Aggregation.of("median")).tolist() == [15, 15, 0, 10]
    assert total(updates, Aggregation.of("sum")).tolist() == [100, 5, 15, 10]
    assert total(updates[:2], Aggregation.of("trimmed-mean:0.49")).tolist() == [3, 9, 0, 4]
    assert total(updates[:3], Aggregation.of("trimmed-mean:0.49")).tolist() == [6, 12, 0, 6]
    halves = total(updates[:4], Aggregation("trimmed-mean", 0.5))
    assert halves.tolist() == total(updates[:4], Aggregation.of("median")).tolist(), "two are left"
    halved = total(updates, Aggregation.of("sum"), np.full(5, 0.5))
    assert (halved.tolist(), halved.dtype.name) == ([50, 2.5, 7.5, 5], "float32")
    assert total(updates, Aggregation.of("sum"), np.full(5, 2.0)).tolist() == [200, 10, 30, 20]
    assert np.isinf(total(np.full((3, 1), 3e38, dtype=np.float32), Aggregation.of("sum"))).all(), "without a warning"


def test_sums_and_norms_in_single_precision_are_computed_in_double() -> None:
    many = np.full((100_001, 1), 0.1, dtype=np.float32)
    exact = 100_001 * float(np.float32(0.1))
    assert float(total(many, Aggregation.of("sum"))[0]) == pytest.approx(exact, rel=1e-7)
    assert norms(np.array([[3e30, 4e30]], dtype=np.float32)) == pytest.approx([5e30])


def test_factors_by_hand() -> None:
    lengths = np.array([1.0, 2.0, 24.0])
    assert clip_factors(lengths, Aggregation.of("clipped:2"), 3.0).tolist() == [1, 1, 0.25]
    assert clip_factors(lengths, Aggregation.of("median"), 2.0).tolist() == [1, 1, 0.25], "three times the usual norm"
    assert clip_factors(np.array([0.0, 9.0]), Aggregation.of("clipped"), 4.5).tolist() == [1, 0.5], "without a warning"


def test_losses_and_votes_that_nobody_reported() -> None:
    losses = np.array([[1.0, np.nan], [3.0, np.nan], [80.0, np.nan]])
    found = robust_losses(losses, ~np.isnan(losses), Aggregation.of("median"))
    assert found[:, 0].tolist() == [3, 3, 3]
    assert np.isnan(found[:, 1]).all()
    swapped = robust_losses(losses[:, ::-1], ~np.isnan(losses[:, ::-1]), Aggregation.of("median"))
    assert swapped[:, 1].tolist() == [3, 3, 3], "whichever model it is"
    assert moderate_votes(np.array([[0.0, 2.0], [0.0, -1.0]])).tolist() == [[0, 1.5], [0, -1]]
