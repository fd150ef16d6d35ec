"""What late hedging learns from a sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ofms.core.pooling import divergence, pool_gradient, pool_loss, poolable
from ofms.core.typing import AnyArray, Floats
from ofms.policies.relative_losses import Draw, relative_losses
from tests.policies.hedging import lay_out, log_loss, noise, squared_error


def draw_of(weights: Floats, certain: list[int], filling: list[int] | None = None) -> Draw:
    flags, fill = (np.isin(np.arange(weights.size), some) for some in (certain, filling or certain))
    return Draw(weights[None], flags[None], np.array([weights[~flags].sum()]), fill[None])


@st.composite
def samples(draw: st.DrawFn) -> tuple[Floats, Floats, AnyArray]:
    """Weights, outputs [K, C] and a target [1], of a regression or a classification."""
    models, width = draw(st.integers(2, 6)), draw(st.sampled_from([1, 2, 5]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = np.exp(draw(st.sampled_from([0.0, 1.0, 5.0])) * random.normal(size=models))
    outputs = poolable(draw(st.sampled_from([0.1, 1.0, 20.0])) * random.normal(size=(models, width)))
    target = random.normal(size=1) if width == 1 else random.integers(0, width, size=1)
    return weights / weights.sum(), outputs, target


def test_two_models_by_hand() -> None:
    """Outputs 1 and 3 with weights 3/4 and 1/4, target 0, squared error: the pool is 3/2, its gradient 3.

    D = (φ - 3/2)² is 1/4 and 9/4, in the mean 3/4. Model 1 is certain. Model 0 is drawn for its weight 3/4, so that the
    vote is always p: no noise, λ = 0. With both models drawn the noise is the whole mean: λ = 1.
    """
    weights, outputs, target = np.array([0.75, 0.25]), np.array([[[1.0], [3.0]]]), np.array([0.0])
    assert relative_losses(outputs, target, draw_of(weights, [1])).models == pytest.approx(np.array([[-1.5, 4.5]]))
    drawn = relative_losses(outputs, target, draw_of(weights, [])).models
    assert drawn == pytest.approx(np.array([[1 - 2.25, 9 - 2.25]])), "the losses less that of the pool"
    assert relative_losses(outputs, target, draw_of(weights, [1]), plain=True).models == pytest.approx(drawn)


def test_the_price_of_one_draw_for_several_models_by_hand() -> None:
    """Weights 0.5 (certain), 0.3, 0.2 and outputs 1, 2, 5: the pool is 2.1, the target too.

    One of the others votes with 0.5: predictions 1.5 and 3, noise (0.3 · 0.36 + 0.2 · 0.81) / 0.5 = 0.54. D is 1.21,
    0.01 and 8.41, in the mean 2.29. The gradient is 0 where the pool is right.
    """
    weights, outputs, target = np.array([0.5, 0.3, 0.2]), np.array([[[1.0], [2.0], [5.0]]]), np.array([2.1])
    distances = np.array([[1.21, 0.01, 8.41]])
    found = relative_losses(outputs, target, draw_of(weights, [0])).models
    assert found == pytest.approx(0.54 / 2.29 * distances)


def test_models_that_are_not_known_yet_by_hand() -> None:
    """Of weights 0.3, 0.2 and 0.5 (certain), the last model is unknown: the pool of outputs 2 and 5 is 3.2.

    One of them votes with 0.5, and the rest of the vote is at the pool: 2.6 and 4.1, noise 0.54; the mean of D is 2.16.
    If the models that are drawn are the unknown ones, there is no noise.
    """
    weights, outputs = np.array([0.3, 0.2, 0.5]), np.array([[[2.0], [5.0], [np.nan]]])
    found = relative_losses(outputs, np.array([3.2]), draw_of(weights, [2])).models
    assert found == pytest.approx(np.array([[0.36, 0.81, np.nan]]), nan_ok=True)
    found = relative_losses(outputs, np.array([1.2]), draw_of(weights, [0, 1])).models
    assert found == pytest.approx(np.array([[4 * -1.2, 4 * 1.8, np.nan]]), nan_ok=True)


def test_what_drawing_and_omitting_cost_by_hand() -> None:
    """Weights 0.5 (certain), 0.3, 0.2 and outputs 1, 2, 5 with the pool 2.1; the target is 2.

    A draw costs 0.54 (above) over the error 0.01 of the pool. Without the last model the pool is 1.375, error 0.390625.
    If the second one is not known, the pool of the others is 15/7 with error 1/49: a draw is of the last one, at 15/7,
    and costs nothing; without it, the prediction 1 has the error 1.
    """
    weights, outputs, target = np.array([0.5, 0.3, 0.2]), np.array([[[1.0], [2.0], [5.0]]]), np.array([2.0])
    draw = draw_of(weights, [0], filling=[0, 1])
    assert relative_losses(outputs, target, draw).ways == pytest.approx(np.array([[0.54, 0.390625 - 0.01]]))
    outputs[0, 1] = np.nan
    found = relative_losses(outputs, target, draw).ways[0]
    assert found == pytest.approx(np.array([0.0, 1 - 1 / 49]))
    unknown = draw_of(weights, [0], filling=[1])
    assert relative_losses(outputs, target, unknown).ways[0, 1] == 0, "nothing is known of what fills the budget"


def test_the_price_of_a_draw_is_at_most_the_whole_difference() -> None:
    """Of weights 0.1 (certain), 0.01, 0.01 and 0.88, the last model is not known; the others' outputs are 0, 0 and 1.

    Their pool is 1/12, D is 1/144, 1/144 and 121/144, in the mean 11/144. A draw is for 0.9: predictions 0 and 0.9 have
    the noise 0.2025, so λ is cut to 1.
    """
    weights, outputs = np.array([0.1, 0.01, 0.01, 0.88]), np.array([[[0.0], [0.0], [1.0], [np.nan]]])
    found = relative_losses(outputs, np.array([1 / 12]), draw_of(weights, [0])).models
    assert found == pytest.approx(np.array([[1, 1, 121, np.nan]]) / 144, nan_ok=True)


@given(samples(), st.data())
def test_the_mean_relative_loss_covers_the_noise_of_the_draw(
    sample: tuple[Floats, Floats, AnyArray], data: st.DataObject
) -> None:
    """⟨p, r⟩ ≥ E[L(prediction)] - L(c), and no loss exceeds that of the model less that of the pool."""
    weights, outputs, target = sample
    budget = data.draw(st.integers(2, weights.size))
    layout = lay_out(weights, np.ones(weights.size), budget, data.draw(st.sampled_from([None, 0])))
    assume(layout.rho == 0 or layout.rho > 1e-9)
    filling = np.isin(np.arange(weights.size), np.argsort(-weights)[:budget])
    draw = Draw(
        weights[None],
        np.isin(np.arange(weights.size), layout.certain)[None],
        np.array([layout.rho]),
        filling[None],
    )
    relative = relative_losses(outputs[None], target, draw)
    found = relative.models[0]
    centre = pool_loss((weights @ outputs)[None], target)
    draws = ((chance, (vote_drawn @ outputs)[None]) for chance, vote_drawn in layout.draws(weights))
    expected = sum(chance * float(pool_loss(pool, target)[0]) for chance, pool in draws)
    scale = 1 + float(np.abs(outputs).max()) ** 2
    mean = float(weights @ found)
    assert mean >= expected - float(centre[0]) - 1e-9 * scale
    loss = squared_error(float(target[0])) if outputs.shape[1] == 1 else log_loss(int(target[0]))
    assert mean == pytest.approx(noise(layout, weights, outputs, loss), rel=1e-6, abs=1e-9 * scale), "no more than that"
    alone = np.array([float(pool_loss(each[None], target)[0]) for each in outputs])
    assert (found <= alone - centre + 1e-9 * scale).all(), "λ ≤ 1"
    assert relative_losses(outputs[None], target, draw, plain=True).models[0] == pytest.approx(
        alone - centre, abs=1e-9 * scale
    )
    omitted = (weights * filling / weights[filling].sum()) @ outputs
    ways = np.array([noise(layout, weights, outputs, loss), float((pool_loss(omitted[None], target) - centre)[0])])
    assert relative.ways[0] == pytest.approx(ways, rel=1e-6, abs=1e-9 * scale), "the two ways to predict"


@given(samples(), st.data())
def test_unknown_models_have_no_loss_and_do_not_count(
    sample: tuple[Floats, Floats, AnyArray], data: st.DataObject
) -> None:
    weights, outputs, target = sample
    known = np.array(data.draw(st.lists(st.booleans(), min_size=weights.size, max_size=weights.size)))
    assume(known.any())
    some = np.where(known[:, None], outputs, np.nan)
    found = relative_losses(some[None], target, draw_of(weights, []), plain=True).models[0]
    assert (np.isnan(found) == ~known).all()
    alone = relative_losses(
        outputs[None, known], target, draw_of(weights[known] / weights[known].sum(), []), plain=True
    ).models
    assert found[known] == pytest.approx(alone[0], rel=1e-9, abs=1e-9 * (1 + float(np.abs(outputs).max()) ** 2))


def test_known_models_without_weight_count_equally() -> None:
    outputs = np.array([[[np.nan], [1.0], [3.0]]])
    found = relative_losses(outputs, np.array([2.0]), draw_of(np.array([1.0, 0.0, 0.0]), [0])).models
    assert found[0, 1:].tolist() == [0, 0], "the pool of 1 and 3 is right"


@given(samples(), st.integers(0, 2**32))
def test_the_loss_is_convex_in_the_pool(sample: tuple[Floats, Floats, AnyArray], seed: int) -> None:
    weights, outputs, target = sample
    targets = np.repeat(target, len(outputs))
    centre = (weights @ outputs)[None]
    gaps = divergence(outputs, np.repeat(centre, len(outputs), axis=0))
    scale = 1 + float(np.abs(outputs).max()) ** 2
    assert (gaps >= 0).all()
    losses = pool_loss(outputs, targets)
    slopes = (outputs - centre) @ pool_gradient(centre, target)[0]
    assert losses - pool_loss(centre, target) - slopes == pytest.approx(gaps, abs=1e-9 * scale)
    assert float(weights @ losses) >= float(pool_loss(centre, target)[0]) - 1e-9 * scale, "Jensen"
    direction = np.random.default_rng(seed).normal(size=centre.shape)
    ahead, behind = (pool_loss(centre + step * direction, target) for step in (1e-5, -1e-5))
    slope = float((pool_gradient(centre, target) * direction).sum())
    assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-4, abs=1e-6 * scale)


@pytest.mark.parametrize("width", [1, 3])
def test_bits_do_not_depend_on_what_is_computed_at_once(width: int) -> None:
    """Samples together, each alone, in pairs; some of them predicted without a draw."""
    random = np.random.default_rng(1)
    for drawn in ([0, 0, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]):
        weights = random.dirichlet(np.ones(33), size=4)
        certain = np.array([[not flag] * 33 for flag in drawn]) | (np.arange(33) < 4)
        filling = np.tile(np.arange(33) < 5, (4, 1))
        draw = Draw(weights, certain, (weights * ~certain).sum(axis=1), filling)
        outputs = poolable(random.normal(size=(4, 33, width)))
        outputs[:, 20] = np.nan
        targets = random.normal(size=4) if width == 1 else random.integers(0, width, size=4)
        together = relative_losses(outputs, targets, draw)
        for some in (slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4), slice(0, 2), slice(1, 3), slice(0, 3)):
            part = Draw(weights[some], certain[some], draw.outside[some], filling[some])
            found = relative_losses(outputs[some], targets[some], part)
            assert np.array_equal(found.models, together.models[some], equal_nan=True)
            assert np.array_equal(found.ways, together.ways[some])
