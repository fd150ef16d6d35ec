"""Offsets of predictions: hand-worked steps, the bounds of docs/theory.md section 15, and clients together or alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ofms.core.pooling import LARGEST, pool_loss
from ofms.core.states import flatten
from ofms.core.typing import AnyArray, Floats
from ofms.policies import late_hedge
from ofms.policies.late_hedge_settings import LateHedge
from ofms.policies.offsets import _LARGEST_RATE, _LEAST_GAP, Offsets, learn
from ofms.policies.session import open_sessions
from tests.problems import fleet_of

MEMORIES = np.array([1.0, 15 / 16, 3 / 4])


def followed(pools: Floats, targets: AnyArray, memories: Floats) -> tuple[Floats, Offsets]:
    """[N, T] the losses of predictions with the offsets of their time, and what was learnt in the end."""
    clients, rounds, _ = pools.shape
    offsets, losses = Offsets.none(clients, memories.size), np.zeros((clients, rounds))
    for place in range(rounds):
        mean = offsets.mean
        shifted = pools[:, place] if mean is None else pools[:, place] + mean
        losses[:, place] = pool_loss(shifted, targets[:, place])
        offsets = learn(offsets, pools[:, place : place + 1], targets[:, place : place + 1], memories)
    return losses, offsets


def test_the_offset_of_squared_errors_without_forgetting_is_a_mean_of_residuals() -> None:
    residuals = np.array([0.3, -0.1, 0.4])
    pools = np.full((1, 3, 1), 0.5)
    learnt = learn(Offsets.none(1, 1), pools, 0.5 + residuals[None], np.ones(1))
    assert learnt.values[0, 0, 0] == pytest.approx(residuals.sum() / 4)


def test_forgetting_shrinks_the_offset() -> None:
    # γ = 1/2: b = 0.5, then n = 1.5, g = 2(0 + 0.5 - 1) = -1, and b + (1 - 0.5 · 2 · 0.5)/(2 · 2.5) = 0.6.
    learnt = learn(Offsets.none(1, 1), np.zeros((1, 2, 1)), np.ones((1, 2)), np.array([0.5]))
    assert learnt.values[0, 0, 0] == pytest.approx(0.6)
    assert learnt.counts[0, 0] == pytest.approx(1.5)


def test_the_offset_of_classes_moves_towards_their_frequencies() -> None:
    pools = np.log(np.array([[[0.2, 0.3, 0.5]]]))
    learnt = learn(Offsets.none(1, 1), pools, np.array([[0]]), np.ones(1))
    assert learnt.values[0, 0] == pytest.approx(np.array([0.8, -0.3, -0.5]) / 2)


def test_the_first_hedge_is_the_average_of_all_offsets() -> None:
    learnt = learn(Offsets.none(1, 1), np.zeros((1, 1, 1)), np.ones((1, 1)), np.ones(1))
    # Without an offset and with that of the member, which was 0, the losses are the same: weights of 1/2 each.
    assert learnt.mean is not None
    assert learnt.mean[0, 0] == pytest.approx(0.25)


@given(
    residuals=arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 40)), elements=st.floats(-2, 2)),
    classes=st.booleans(),
)
def test_predictions_are_never_worse_than_without_an_offset_by_more_than_the_gaps(
    residuals: Floats, classes: bool
) -> None:
    pools = np.stack([residuals, -residuals, np.zeros_like(residuals)], axis=-1) if classes else residuals[..., None]
    targets = (residuals > 0.3).astype(np.int64) if classes else np.zeros(residuals.shape)
    losses, learnt = followed(pools, targets, MEMORIES)
    assert (losses.sum(axis=1) <= learnt.losses.min(axis=1) + 2 * learnt.gap + 1e-6).all()
    assert learnt.losses[:, 0] == pytest.approx(pool_loss(pools, targets).sum(axis=1))


@given(residuals=arrays(np.float64, st.integers(1, 60), elements=st.floats(-1, 1)))
def test_the_member_without_forgetting_competes_with_the_best_offset(residuals: Floats) -> None:
    _, learnt = followed(residuals[None, :, None], np.zeros((1, residuals.size)), np.ones(1))
    best = -residuals.sum() / (residuals.size + 1)
    offsets = -np.concatenate([[0.0], np.cumsum(residuals)[:-1]]) / np.arange(1, residuals.size + 1)
    price = (np.square(residuals + offsets) / np.arange(2, residuals.size + 2)).sum()
    # An identity: section 15 bounds the price by the logarithm of the number of rounds.
    expected = np.square(residuals + best).sum() + best**2 + price
    assert learnt.losses[0, 1] == pytest.approx(expected, abs=1e-9)


def test_the_gaps_come_near_to_what_an_adversary_takes() -> None:
    rounds = 400
    # Whatever the members learnt is wrong in the next round.
    offsets, loss = Offsets.none(1, 3), 0.0
    for _ in range(rounds):
        mean = 0.0 if offsets.mean is None else float(offsets.mean[0, 0])
        target = -1.0 if mean >= 0 else 1.0
        loss += (mean - target) ** 2
        offsets = learn(offsets, np.zeros((1, 1, 1)), np.array([[target]]), MEMORIES)
    regret, bound = loss - rounds, 2 * float(offsets.gap[0])
    assert 0.3 * bound < regret <= bound
    assert bound < 0.1 * rounds


def test_an_offset_pays_where_pools_are_biased_and_costs_little_elsewhere() -> None:
    draws = np.random.default_rng(0).normal(size=(20, 300))
    for bias, least, most in ((1.0, 0.4, 0.6), (0.0, 0.99, 1.05)):
        pools = (draws + bias)[..., None]
        losses, _ = followed(pools, np.zeros(draws.shape), MEMORIES)
        assert least < losses.mean() / np.square(pools).mean() < most


@pytest.mark.parametrize("width", [1, 4])
def test_a_client_alone_learns_the_same_bits(width: int) -> None:
    draws = np.random.default_rng(1)
    pools, targets = draws.normal(size=(5, 7, width)), draws.integers(0, max(2, width), size=(5, 7))
    together = learn(Offsets.none(5, 3), pools, targets, MEMORIES)
    for client in range(5):
        rows = slice(client, client + 1)
        alone = Offsets.none(1, 3)
        for place in range(7):
            alone = learn(alone, pools[rows, place : place + 1], targets[rows, place : place + 1], MEMORIES)
        for name, array in flatten(alone)[0].items():
            assert np.array_equal(array, flatten(together)[0][name][rows]), name
        mean, own = together.mean, alone.mean
        assert mean is not None
        assert own is not None
        assert np.array_equal(own, mean[rows])


def test_a_pool_that_overflowed_is_left_out() -> None:
    pools = np.array([[[0.5]], [[LARGEST]], [[np.nan]]])
    learnt = learn(Offsets.none(3, 2), pools, np.ones((3, 1)), np.array([1.0, 0.5]))
    assert (learnt.values[0] > 0).all()
    assert not learnt.values[1:].any()
    assert not learnt.losses[1:].any()
    assert not learnt.counts[1:].any()


def test_others_learn_beside_a_pool_that_overflowed() -> None:
    """Every part of what a client has learnt is its own: as it was, or as it would be alone."""
    pools = np.array([[[0.5]], [[0.5]], [[0.25]]])
    before = learn(Offsets.none(3, 3), pools, np.full((3, 1), 0.75), MEMORIES)
    after = learn(before, np.array([[[0.5]], [[LARGEST]], [[np.nan]]]), np.full((3, 1), 1.0), MEMORIES)
    alone = learn(of_one(before, 0), np.array([[[0.5]]]), np.full((1, 1), 1.0), MEMORIES)
    for name in ("values", "counts", "losses", "gap"):
        kept, changed = getattr(before, name), getattr(after, name)
        assert changed[1:].tolist() == kept[1:].tolist(), name
        assert changed[:1].tolist() == getattr(alone, name).tolist() != kept[:1].tolist(), name


def of_one(offsets: Offsets, client: int) -> Offsets:
    rows = slice(client, client + 1)
    return Offsets(offsets.values[rows], offsets.counts[rows], offsets.losses[rows], offsets.gap[rows])


def test_the_setting_turns_offsets_off() -> None:
    fleet = fleet_of([1, 1], [2, 2])
    assert late_hedge.build(LateHedge(), fleet).offset_memories == (1.0, 15 / 16, 3 / 4)
    without = late_hedge.build(LateHedge(offset=False), fleet)
    assert without.offset_memories == ()
    session, _ = open_sessions(without, fleet)
    assert session.join(fleet.catalogue, fleet.budgets, np.arange(2)).offsets.mean is None


def mixed(losses: list[float], rate: float) -> float:
    """-1/η ln Σ exp(-η L)."""
    return min(losses) - math.log(sum(math.exp(-rate * (each - min(losses))) for each in losses)) / rate


def test_the_hedge_against_no_offset_by_a_plain_loop() -> None:
    """One member without forgetting: AdaHedge over no offset and the member's, sample by sample."""
    pools, targets = [0.5, 0.4, -0.2, 0.9], [0.8, 0.1, 0.3, 1.0]
    value, gap, sums = 0.0, 0.0, [0.0, 0.0]
    for count, (pool, target) in enumerate(zip(pools, targets, strict=True)):
        rate = min(math.log(2) / max(gap, _LEAST_GAP), _LARGEST_RATE)
        weights = [math.exp(-rate * (each - min(sums))) for each in sums]
        incurred = (pool + weights[1] / sum(weights) * value - target) ** 2
        after = [sums[0] + (pool - target) ** 2, sums[1] + (pool + value - target) ** 2]
        gap += max(0.0, incurred - (mixed(after, rate) - mixed(sums, rate)))
        sums, value = after, value - (pool + value - target) / (count + 2)
    learnt = learn(Offsets.none(2, 1), np.array([pools] * 2)[..., None], np.array([targets] * 2), np.ones(1))
    assert gap > 0.01
    assert learnt.gap == pytest.approx([gap] * 2)
    assert learnt.losses == pytest.approx(np.array([sums] * 2))
    assert learnt.values[..., 0] == pytest.approx(np.array([[value]] * 2))


def test_nothing_learnt() -> None:
    for members, losses in ((0, 0), (1, 2), (3, 4)):
        none = Offsets.none(2, members)
        assert (none.losses.shape, none.values.shape, none.mean) == ((2, losses), (2, members, 0), None)
