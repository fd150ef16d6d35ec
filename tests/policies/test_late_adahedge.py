"""AdaHedge with late losses: totals, weights and rates."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.late_adahedge import Hedge, OpenRounds, Totals, Weights, advance, start
from tests.policies.hedging import mixed_loss, softmax
from tests.policies.late_clients import softmaxes

MEMORIES = np.array([1.0, 0.9, 0.5])


def rounds_of(losses: Floats, members: int, seed: int) -> OpenRounds:
    """Rounds with some weights and rates, whatever made them; rates only fall."""
    random = np.random.default_rng(seed)
    clients, rounds, models = losses.shape
    rates = np.sort(random.uniform(0.1, 3, (clients, rounds, members + 1)), axis=1)[:, ::-1]
    return OpenRounds(
        softmaxes(random.normal(size=(clients, rounds, members, models))),
        softmaxes(random.normal(size=(clients, rounds, members))),
        rates[..., 1:],
        rates[..., 0],
        losses,
        np.zeros((clients, rounds), dtype=np.bool_),
    )


def naive_totals(rounds: OpenRounds, client: int) -> Totals:
    """The totals of one client's rounds, all of which are known."""
    sums, gaps = np.zeros((MEMORIES.size, rounds.losses.shape[2])), np.zeros(MEMORIES.size)
    of_members, gap = np.zeros(MEMORIES.size), 0.0
    for r, losses in enumerate(rounds.losses[client]):
        incurred = rounds.members[client, r] @ losses
        for j, gamma in enumerate(MEMORIES):
            mixed = gamma * mixed_loss(sums[j], float(rounds.rates[client, r, j]), losses / gamma)
            gaps[j] = gamma * gaps[j] + max(0.0, incurred[j] - mixed)
            sums[j] = gamma * sums[j] + losses
        hedged = float(rounds.mixture[client, r] @ incurred)
        gap += max(0.0, hedged - mixed_loss(of_members, float(rounds.mixture_rate[client, r]), incurred))
        of_members = of_members + incurred
    return Totals(sums, gaps, of_members, np.array(gap))


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(2, 5))
def test_late_losses_in_any_order_end_in_the_totals_of_prompt_ones(seed: int, length: int, models: int) -> None:
    random = np.random.default_rng(seed)
    clients = 2
    losses = random.normal(size=(clients, length, models))
    rounds = rounds_of(losses, MEMORIES.size, seed)
    hedge, final = start(clients, models, MEMORIES.size), rounds.final
    known = np.zeros(losses.shape, dtype=np.bool_)
    finished = hedge.finished
    while not known.all():
        known |= random.random(known.shape) < 0.3
        now = replace(rounds, losses=np.where(known, losses, np.nan), final=final)
        hedge, final, weights = advance(hedge, now, MEMORIES, expired=0, hints=True)
        assert (final == np.logical_and.accumulate(known.all(axis=2), axis=1)).all(), "no gap before a final round"
        assert (hedge.finished >= finished).all()
        finished = hedge.finished
        assert_probabilities(weights)
    assert final.all()
    assert hedge.finished.tolist() == [length] * clients
    assert hedge.hint_sums == pytest.approx(losses.sum(axis=1))
    for client in range(clients):
        expected = naive_totals(rounds, client)
        for name in ("losses", "gaps", "member_losses", "member_gaps"):
            found = getattr(hedge.totals, name)[client]
            assert found == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-9), name


def assert_probabilities(weights: Weights) -> None:
    for each in (weights.members, weights.mixture, weights.pooled):
        assert each.sum(axis=-1) == pytest.approx(1)
        assert (each >= 0).all()
    assert (weights.rates > 0).all()
    assert (weights.mixture_rate > 0).all()


def play(losses: Floats, known_after: int, memories: Floats = MEMORIES) -> tuple[list[Weights], Hedge]:
    """Weights of each round for [N, T, K] losses, of which a round's are known after some rounds; a third at once."""
    clients, length, models = losses.shape
    hedge = start(clients, models, memories.size)
    made: list[Weights] = []
    final = np.zeros((clients, 0), dtype=np.bool_)
    for step in range(length):
        age = step - np.arange(step)
        known = (age > known_after)[:, None] | (np.arange(models) % 3 == 0)
        so_far = np.where(known, losses[:, :step], np.nan)
        rounds = _stacked(made, so_far, final) if made else rounds_of(so_far, memories.size, 0)
        hedge, final, weights = advance(hedge, rounds, memories, expired=0, hints=True)
        final = np.concatenate([final, np.zeros((clients, 1), dtype=np.bool_)], axis=1)
        made.append(weights)
    return made, hedge


def _stacked(made: list[Weights], losses: Floats, final: Flags) -> OpenRounds:
    names = Weights.__dataclass_fields__
    parts = {name: np.stack([getattr(each, name) for each in made], axis=1) for name in names}
    return OpenRounds(losses=losses, final=final, **parts)


@pytest.mark.parametrize("known_after", [0, 4])
def test_weights_do_not_depend_on_the_scale_of_the_losses(known_after: int) -> None:
    losses = np.random.default_rng(0).normal(size=(2, 40, 6)) + np.linspace(0, 0.5, 6)
    for one, other in zip(play(losses, known_after)[0], play(1000 * losses, known_after)[0], strict=True):
        assert_probabilities(one)
        assert other.pooled == pytest.approx(one.pooled, abs=1e-3)
        assert other.mixture == pytest.approx(one.mixture, abs=1e-3)
    assert one.pooled.max() > 0.3, "something was learnt"


def test_prompt_losses_and_one_memory_are_adahedge() -> None:
    """Δ is the sum of mixability gaps, the next rate ln K/Δ."""
    losses = np.random.default_rng(1).random((1, 30, 4))
    made, hedge = play(losses, known_after=0, memories=np.ones(1))
    total, gaps = np.zeros(4), 0.0
    for step, each in enumerate(losses[0]):
        rate = min(math.log(4) / max(gaps, 1e-9), 1e6)
        weights = softmax(-rate * total)
        assert made[step].pooled[0] == pytest.approx(weights, abs=1e-9)
        gaps += float(weights @ each) - mixed_loss(total, rate, each)
        total += each
    regret = sum(float(made[step].pooled[0] @ each) for step, each in enumerate(losses[0])) - total.min()
    assert regret <= 2 * gaps + 1e-9
    assert hedge.peaks[0, 0] <= gaps


def test_an_expired_round_takes_the_mean_of_the_final_ones_where_it_is_not_known() -> None:
    losses = np.array([[[1.0, 3.0], [2.0, np.nan]]])
    rounds = rounds_of(losses, MEMORIES.size, 0)
    hedge, final, _ = advance(start(1, 2, MEMORIES.size), rounds, MEMORIES, expired=0, hints=True)
    assert final.tolist() == [[True, False]]
    for hints, value in ((True, 3.0), (False, 0.0)):
        after, final, _ = advance(hedge, replace(rounds, final=final), MEMORIES, expired=2, hints=hints)
        assert final.all()
        assert after.totals.losses[0, 0].tolist() == [3, 3 + value]
        assert after.finished.tolist() == [2]
        final = np.array([[True, False]])


def test_a_round_without_any_label_is_none() -> None:
    """It expires without a trace, beside one that is known: hints alone teach nothing."""
    both = rounds_of(np.array([[[1.0, 3.0], [np.nan, np.nan]]]), MEMORIES.size, 0)
    one = rounds_of(np.array([[[1.0, 3.0]]]), MEMORIES.size, 0)
    hedge = start(1, 2, MEMORIES.size)
    (found, final, _), (expected, _, _) = (
        advance(hedge, rounds, MEMORIES, expired=2, hints=True) for rounds in (both, one)
    )
    assert final.all()
    assert found.finished.tolist() == expected.finished.tolist() == [1]
    assert found.totals.losses.tolist() == expected.totals.losses.tolist()


SHARES = [1.0, 0.25]


def play_labels(losses: Floats, labelled: Integers, share: float) -> tuple[list[Weights], list[Floats]]:
    """Weights and peaks of each round for [N, T, K] losses; [N, T] the round after which a label comes, 9999: never."""
    clients, length, models = losses.shape
    hedge, made, peaks = start(clients, models, MEMORIES.size), list[Weights](), list[Floats]()
    final = np.zeros((clients, 0), dtype=np.bool_)
    for step in range(length):
        known = (labelled[:, :step] < step)[..., None] & (np.arange(models) <= step - np.arange(step)[:, None])
        so_far = np.where(known, losses[:, :step], np.nan)
        rounds = _stacked(made, so_far, final) if made else rounds_of(so_far, MEMORIES.size, 0)
        hedge, final, weights = advance(hedge, rounds, MEMORIES, expired=max(0, step - 8), hints=True, share=share)
        final = np.concatenate([final, np.zeros((clients, 1), dtype=np.bool_)], axis=1)
        made.append(weights)
        peaks.append(hedge.peaks)
    return made, peaks


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.7]), st.sampled_from([1, 4]), st.sampled_from(SHARES))
def test_rates_rise_by_the_discount_of_rounds_with_a_label_alone(
    seed: int, missing: float, late: int, share: float
) -> None:
    """γ^(i-1) η_i does not increase over the rounds that had a label in the end, whenever it came, or whether."""
    random = np.random.default_rng(seed)
    losses = random.normal(size=(2, 30, 3)) * np.exp(random.normal(size=(2, 30, 1)))
    labelled = np.arange(30) + random.integers(0, late, (2, 30))
    labelled = np.where(random.random((2, 30)) < missing, 9999, labelled)
    made, _ = play_labels(losses, labelled, share)
    for client in range(2):
        counted = [each.rates[client] for step, each in enumerate(made) if labelled[client, step] < 30]
        for before, after in pairwise(counted):
            assert (after <= before / MEMORIES * (1 + 1e-9)).all()


@pytest.mark.parametrize("share", SHARES)
def test_rates_stay_while_there_are_no_labels(share: float) -> None:
    """The gap of the last round with a label is large until all of its losses are known: then they are equal."""
    losses = np.random.default_rng(0).normal(size=(1, 30, 3))
    losses[:, 11] = 100
    made, peaks = play_labels(losses, np.where(np.arange(30) < 12, np.arange(30), 9999)[None], share)
    assert (peaks[12] > 3 * peaks[11]).all()
    assert (peaks[-1] >= MEMORIES * peaks[12] * (1 - 1e-12)).all(), "one discount is due: a label may still come"
    for step in range(22, 30):
        assert made[step].rates.tolist() == made[21].rates.tolist(), "all rounds with a label are final"


@pytest.mark.parametrize("share", SHARES)
def test_labels_that_are_always_late_discount_peaks_too(share: float) -> None:
    """Losses are large in one round: peaks of short memories are forgotten although the last round has no label yet."""
    losses = np.random.default_rng(0).normal(size=(1, 30, 3))
    losses[:, 3] *= 100
    _, peaks = play_labels(losses, np.arange(30)[None] + 1, share)
    assert peaks[-1][0, 0] == pytest.approx(max(each[0, 0] for each in peaks)), "γ = 1"
    assert peaks[-1][0, 2] < 0.05 * max(each[0, 2] for each in peaks)
