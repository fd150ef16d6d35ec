"""The lemmas of docs/theory.md, each on generated input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofms.core.typing import Floats
from ofms.policies import pool_memory
from tests.policies.hedging import (
    Loss,
    divergence,
    lay_out,
    log_loss,
    mixed_loss,
    noise,
    noise_scale,
    relative_losses,
    softmax,
    squared_error,
)

seeds = st.integers(0, 2**32)


def random_round(seed: int, models: int, classes: bool) -> tuple[Floats, Floats, Loss]:
    """Weights of very different sizes, outputs, and a loss."""
    random = np.random.default_rng(seed)
    weights = softmax(random.normal(size=models) * random.choice([0.1, 1, 4]))
    if classes:
        probabilities = random.dirichlet(np.full(3, 0.3), size=models)
        return weights, np.log(0.999 * probabilities + 0.001 / 3), log_loss(int(random.integers(3)))
    return weights, random.normal(size=(models, 1)), squared_error(float(random.normal()))


@settings(max_examples=60)
@given(seeds, st.integers(2, 6), st.booleans(), st.booleans(), st.integers(2, 5))
def test_lemma_1_the_vote_is_right_in_expectation_and_its_noise_is_bounded(
    seed: int, models: int, classes: bool, visits: bool, budget: int
) -> None:
    weights, outputs, loss = random_round(seed, models, classes)
    random = np.random.default_rng(seed)
    costs = random.uniform(0.5, 1, size=models)
    visitor = int(random.integers(models)) if visits else None
    layout = lay_out(weights, costs, budget, visitor)
    draws = list(layout.draws(weights))
    assert sum(chance for chance, _ in draws) == pytest.approx(1)
    assert sum(chance * vote for chance, vote in draws) == pytest.approx(weights), "E w = p"
    for _, vote in draws:
        held = np.union1d(np.flatnonzero(vote > 0), layout.certain).astype(np.int64)
        assert vote.sum() == pytest.approx(1)
        assert costs[held].sum() <= budget + 1e-9, "two of the largest costs fit: (A2)"
    centre = weights @ outputs
    actual = sum(chance * divergence(loss, vote @ outputs, centre) for chance, vote in draws)
    diversity = float(weights @ [divergence(loss, each, centre) for each in outputs])
    computed = noise(layout, weights, outputs, loss)
    assert actual <= computed + 1e-9
    assert computed <= diversity + 1e-9
    if layout.teeth == 1:
        assert computed == pytest.approx(actual, abs=1e-9)
    if not classes and layout.rho <= layout.teeth / layout.places:
        assert actual <= diversity / layout.places + 1e-9, "squared error: at most 1/n of the diversity"
    drawn = sum(chance * (vote > 0) for chance, vote in draws)
    assert layout.inclusion(weights)[layout.others] == pytest.approx(np.asarray(drawn)[layout.others])


@settings(max_examples=100)
@given(seeds, st.integers(2, 6), st.booleans(), st.integers(2, 4))
def test_lemma_2_the_regret_is_at_most_that_of_hedging(seed: int, models: int, classes: bool, budget: int) -> None:
    weights, outputs, loss = random_round(seed, models, classes)
    layout = lay_out(weights, np.ones(models), budget, None)
    scale = noise_scale(layout, weights, outputs, loss)
    relative = relative_losses(weights, outputs, loss, scale)
    expected = sum(chance * loss(vote @ outputs)[0] for chance, vote in layout.draws(weights))
    for mixture in [*np.eye(models), *np.random.default_rng(seed).dirichlet(np.ones(models), size=5)]:
        pool = mixture @ outputs
        diversity = float(mixture @ [divergence(loss, each, pool) for each in outputs])
        assert expected - loss(pool)[0] <= (weights - mixture) @ relative + scale * diversity + 1e-9


@settings(max_examples=60)
@given(seeds, st.integers(2, 6), st.integers(1, 40), st.sampled_from([1.0, 15 / 16, 3 / 4]))
def test_lemma_3_hedging_with_any_weights_pays_the_gaps(seed: int, models: int, rounds: int, memory: float) -> None:
    """Any weights p_t, rates that fall as γ^(t-1) η_t does, sums with forgetting γ."""
    random = np.random.default_rng(seed)
    losses = random.normal(size=(rounds, models)) * random.choice([0.1, 1, 10])
    top, gaps, lag = float(random.uniform(0.01, 1)), 0.0, np.zeros(models)
    cumulative = np.zeros(models)
    for step, loss in enumerate(losses):
        top = max(memory * top, top * memory * float(random.uniform(1, 2)), 1e-12)
        rate = math.log(models) / top
        weights = softmax(-rate * cumulative) if step % 2 else random.dirichlet(np.ones(models))
        gaps = memory * gaps + float(weights @ loss) - memory * mixed_loss(cumulative, rate, loss / memory)
        lag = memory * lag + float(weights @ loss) - loss
        cumulative = memory * cumulative + loss
        assert (lag <= memory * top + gaps + 1e-9 * (1 + np.abs(lag).max())).all()


@settings(max_examples=200)
@given(seeds, st.integers(2, 8), st.floats(0, 1), st.floats(0.01, 3))
def test_lemma_4_the_price_of_not_knowing_yet(seed: int, models: int, share: float, rate: float) -> None:
    random = np.random.default_rng(seed)
    cumulative, losses = random.normal(size=models) * 3, random.normal(size=models)
    unknown = random.uniform(-1, 1, size=models)
    unknown *= share / (rate * np.abs(unknown).max())
    spread = float(losses.max() - losses.min())
    weights = softmax(-rate * (cumulative - unknown))
    gap = float(weights @ losses) - mixed_loss(cumulative, rate, losses)
    assert gap <= spread + 1e-12
    assert gap <= rate * (spread**2 / 8 + 1.72 * spread * float(weights @ np.abs(unknown))) + 1e-12


def gap(weights: Floats, losses: Floats, cumulative: Floats, rate: float) -> float:
    return max(0.0, float(weights @ losses) - mixed_loss(cumulative, rate, losses))


@settings(max_examples=20, deadline=None)
@given(
    seeds,
    st.integers(2, 6),
    st.integers(1, 12),
    st.sampled_from([1.0, 0.25]),
    st.sampled_from(["random", "drifting", "against"]),
)
def test_lemma_5_the_sum_of_gaps_grows_as_the_root_of_what_is_not_known(
    seed: int, models: int, delay: int, share: float, kind: str
) -> None:
    """AdaHedge with rates from provisional gaps, or a share of them.

    An entry is known after a random number of rounds up to the delay.
    """
    random = np.random.default_rng(seed)
    rounds, experts = 200, math.log(models)
    losses, known = np.zeros((rounds, models)), random.integers(0, delay, size=(rounds, models))
    weights, rates, tops = np.zeros((rounds, models)), np.zeros(rounds), np.zeros(rounds)
    final, final_gaps, top, squares = np.zeros(models), 0.0, 0.0, 0.0
    for step in range(rounds):
        if step >= delay:
            oldest = step - delay
            final_gaps += gap(weights[oldest], losses[oldest], final, rates[oldest])
            final = final + losses[oldest]
        cumulative, gaps, behind = final, final_gaps, np.zeros(models)
        for past in range(max(0, step - delay + 1), step):
            seen = np.where(past + known[past] < step, losses[past], 0.1)
            gaps += gap(weights[past], seen, cumulative, rates[past])
            cumulative, behind = cumulative + seen, behind + losses[past] - seen
        top = max(top, gaps)
        tops[step], rates[step] = top, min(share * experts / max(top, 1e-9), 1e6)
        weights[step] = softmax(-rates[step] * cumulative)
        if kind == "against":
            losses[step] = np.where(weights[step] >= 1 / models, 0.5, -0.5)
        elif kind == "drifting":
            losses[step] = 0.5 * np.sign(np.sin(step / 9 + np.arange(models)))
        else:
            losses[step] = random.uniform(-0.5, 0.5, size=models)
        squares += 1 / 8 + 1.72 * float(weights[step] @ np.abs(behind))
    cumulative, gaps, lag = np.zeros(models), 0.0, np.zeros(models)
    for loss, pmf, rate in zip(losses, weights, rates, strict=True):
        gaps += gap(pmf, loss, cumulative, rate)
        cumulative, lag = cumulative + loss, lag + float(pmf @ loss) - loss
    assert lag.max() <= tops[-1] / share + gaps + experts * 1e-6
    assert tops[-1] <= gaps + delay
    assert gaps <= math.sqrt(2 * share * experts * squares) + share * delay * experts + 3 * delay + 2


@given(seeds, st.integers(2, 8), st.integers(1, 5))
def test_every_model_is_held_in_any_stride_times_models_rounds(seed: int, models: int, stride: int) -> None:
    """The visitor is the model that was away longest; whatever else is held."""
    random = np.random.default_rng(seed)
    last = np.full(models, -1)
    for step in range(6 * stride * models):
        held = random.random(models) < random.choice([0, 0.1, 0.9])
        held[int(random.integers(models))] = True
        if step % stride == 0 and (step - 1 - last).max() > 0:
            held[int((step - 1 - last).argmax())] = True
        last[held] = step
        assert (step - last).max() < stride * models


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(3, 14), st.integers(2, 24), st.booleans(), st.booleans())
def test_every_model_is_held_in_time_if_several_visit_at_once(
    seed: int, models: int, exchanges: int, keep: bool, equal: bool
) -> None:
    """Section 12: v visitors if the largest model fits beside the v largest ones; d ≤ E, and one more at the start."""
    random = np.random.default_rng(seed)
    costs = np.ones(models, dtype=np.int64) if equal else random.integers(1, 4, size=models)
    stride = max(1, exchanges // models)
    visitors = -(-models * stride // exchanges)
    delay = stride * -(-models // visitors)
    assert delay <= exchanges
    budget = int(costs.max() + np.sort(costs)[-visitors:].sum())
    budgets, shape = np.array([budget] * 2), (2, models)
    last, held = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    none, longest = held, 0
    for step in range(4 * delay):
        weights = random.normal(size=shape) * random.choice([0, 0.1, 1, 4])
        weights = np.stack([softmax(each) for each in weights])
        visits = step % stride == 0
        away = pool_memory.longest_away(last, costs, budgets, step, visitors) if visits else none
        uniform = random.random((2, budget // int(costs.max()) + 2))
        held = pool_memory.choose(weights, away, held, costs, budgets, uniform, keep=keep).held
        last = np.where(held, np.int64(step), last)
        late = int(visitors > 1)
        longest = max(longest, int((step - last[last >= 0]).max()))
        if step >= delay - 1 + late:
            assert (last >= 0).all(), "all were held at the start"
    assert longest < delay + (late if not keep else 0)


@settings(max_examples=200)
@given(seeds, st.integers(3, 12), st.integers(2, 6), st.booleans())
def test_lemma_6_models_of_some_weight_are_held_often(seed: int, models: int, budget: int, visits: bool) -> None:
    """Equal costs: heavier models than 1/n are certain, the others meet at most two strata and are held with ¾ n p."""
    random = np.random.default_rng(seed)
    weights = softmax(random.normal(size=models) * random.choice([0.1, 1, 3]))
    visitor = int(random.integers(models)) if visits else None
    layout = lay_out(weights, np.ones(models), budget, visitor)
    assert set(np.flatnonzero(layout.places * weights > 1 + 1e-12)) <= set(layout.certain)
    if layout.rho > 0:
        assert ((layout.overlaps(weights) > 1e-12).sum(axis=0) <= 2).all()
    assert (layout.inclusion(weights) >= 0.75 * np.minimum(1, layout.places * weights) - 1e-12).all()


@given(seeds, st.integers(1, 5), st.sampled_from([15 / 16, 3 / 4]))
def test_drift_the_regret_of_a_segment_follows_from_discounted_ones(seed: int, parts: int, memory: float) -> None:
    random = np.random.default_rng(seed)
    rounds, models = 60, 3
    relative = random.uniform(-1, 1, size=(rounds, models))
    ends = np.sort(random.choice(np.arange(1, rounds), size=parts - 1, replace=False)).tolist()
    discounted, now = np.zeros((rounds, models)), np.zeros(models)
    for step in range(rounds):
        now = memory * now + relative[step]
        discounted[step] = now
    largest = max(0.0, float(discounted.max()))
    total = 0.0
    for first, stop in zip([0, *ends], [*ends, rounds], strict=True):
        total += float(relative[first:stop].sum(axis=0).max())
    assert total <= (parts + (1 - memory) * rounds) * largest + parts / (1 - memory) + 1e-9


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 6), st.integers(1, 10))
def test_at_a_fixed_rate_the_gaps_sum_to_the_second_moments_times_the_delay(seed: int, models: int, delay: int) -> None:
    """Section 13: Σ δ ≤ η e^(7x) d Σ ⟨p, q²⟩ for |q| ≤ 1 and x = η d, hints 0."""
    random = np.random.default_rng(seed)
    rounds, exponent = 80, float(random.uniform(0.01, 0.3))
    rate = exponent / delay
    losses, known = random.uniform(-1, 1, size=(rounds, models)), random.integers(0, delay, size=(rounds, models))
    losses *= random.choice([1.0, -1.0]) if seed % 2 else np.sign(losses[0])
    gaps = moments = 0.0
    for step in range(rounds):
        seen = np.arange(step)[:, None] + known[:step] < step
        weights = softmax(-rate * (losses[:step] * seen).sum(axis=0))
        gaps += float(weights @ losses[step]) - mixed_loss(losses[:step].sum(axis=0), rate, losses[step])
        moments += float(weights @ losses[step] ** 2)
    assert gaps <= rate * math.exp(7 * exponent) * delay * moments


@given(seeds, st.integers(3, 7), st.integers(3, 5), st.integers(2, 3))
def test_section_13_a_round_pays_for_its_gap(seed: int, models: int, budget: int, factor: int) -> None:
    """E [L(ŷ) - L(φ_k)] ≤ E ⟨p - e_k, q⟩ - V/n with the centre ŷ and λ = 2/n; and E ⟨p, q⟩ ≥ V/n with λ = 3/n."""
    weights, outputs, loss = random_round(seed, models, classes=False)
    layout = lay_out(weights, np.ones(models), budget, None)
    scale = factor / layout.places
    expected, hedged = np.zeros(models), np.zeros(models)
    mixed, at_models = 0.0, np.array([loss(each)[0] for each in outputs])
    for chance, vote in layout.draws(weights):
        pool = vote @ outputs
        value, gradient = loss(pool)
        relative = (outputs - pool) @ gradient + scale * ((outputs - pool) ** 2).sum(axis=1)
        expected += chance * (value - at_models)
        hedged += chance * (float(weights @ relative) - relative)
        mixed += chance * float(weights @ relative)
    diversity = float(weights @ ((outputs - weights @ outputs) ** 2).sum(axis=1))
    if factor == 2:
        assert (expected <= hedged - diversity / layout.places + 1e-9).all()
    else:
        assert mixed >= diversity / layout.places - 1e-9
