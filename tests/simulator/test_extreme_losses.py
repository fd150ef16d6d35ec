"""Losses beyond single precision, and sequences on which other implementations of bandits fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ofms
from ofms.compute.losses import without_overflow
from ofms.compute.tasks import sample_losses
from ofms.core.pooling import LARGEST, within_range
from ofms.core.selection import draw_model, probabilities
from ofms.policies import MODULES
from ofms.policies.exp3 import Exp3
from tests.problems import regression_problem

DICTIONARY, STREAM = regression_problem(clients=4, rounds=30)
FAR = 1e25


def with_a_far_model() -> ofms.Dictionary:
    """The first model's outputs are finite; their squares are not in single precision."""
    first, *others = DICTIONARY.models
    last = max(name for name in first.tensors if name.endswith("bias"))
    tensors = first.tensors | {last: torch.full_like(first.tensors[last], FAR)}
    return replace(DICTIONARY, models=(replace(first, tensors=tensors), *others))


@pytest.mark.parametrize("bound", ["clip", "saturate"])
@pytest.mark.parametrize("given", [{}, {"loopback": True}, {"cache": True}], ids=["fused", "loopback", "cached"])
def test_a_loss_that_overflows_counts_as_1(bound: str, given: dict[str, Any]) -> None:
    result = ofms.simulate(
        models=with_a_far_model(),
        stream=STREAM,
        policy="follow-the-leader",
        loss_bound=bound,
        budget="3",
        bandwidth="100%",
        history=4,
        **given,
    )
    assert result.history["held"][:, :, 0].any(), "it was held"
    assert np.isfinite(result.score).all()
    assert np.isfinite(result.regret()).all()
    assert result.clients["model_score"][:, 0] == pytest.approx(FAR**2, rel=1e-6)
    chosen = result.history["prediction_weights"][10:, :, 0]
    assert not chosen.any(), "it is not chosen again"


@pytest.mark.parametrize("given", [{}, {"loopback": True}, {"cache": True}], ids=["fused", "loopback", "cached"])
def test_a_raw_loss_that_overflows_counts_as_the_largest(given: dict[str, Any]) -> None:
    result = ofms.simulate(
        models=with_a_far_model(),
        stream=STREAM,
        policy="follow-the-leader",
        loss_bound="raw",
        budget="3",
        bandwidth="100%",
        history=4,
        **given,
    )
    assert np.isfinite(result.regret()).all()
    assert not result.history["prediction_weights"][10:, :, 0].any(), "it is not chosen again"


@pytest.mark.parametrize("scale", [1.0, 1e19, 1e30, 3e38])
def test_losses_agree_with_double_precision(scale: float) -> None:
    logits = torch.tensor([[1.0, -1.0, 0.25], [-1.0, 1.0, 0.5]]) * scale
    targets = torch.tensor([0, 2])
    expected = sample_losses(logits.double(), targets, "classification").numpy()
    found = without_overflow(
        sample_losses(logits, targets, "classification").numpy(), logits.numpy(), targets.numpy(), "classification"
    )
    assert found == pytest.approx(expected, rel=1e-6)
    values, wanted = logits[:, :1], torch.tensor([0.5, -2.0])
    squares = without_overflow(
        sample_losses(values, wanted, "regression").numpy(), values.numpy(), wanted.numpy(), "regression"
    )
    assert squares == pytest.approx(sample_losses(values.double(), wanted.double(), "regression").numpy(), rel=1e-6)


def test_outputs_that_are_not_finite_count_as_the_largest_numbers() -> None:
    values = within_range(np.array([[np.inf], [-np.inf], [np.nan], [1.0]], dtype=np.float32))
    assert values[:, 0].tolist() == [LARGEST, -LARGEST, LARGEST, 1.0]
    losses = without_overflow(np.array([np.inf, np.nan, 1.0]), values[1:], np.zeros(3), "regression")
    assert losses == pytest.approx([LARGEST**2, LARGEST**2, 1.0])
    logits = within_range(np.array([[np.nan, 0.0], [np.nan, np.nan], [np.inf, 0.0]], dtype=np.float32))
    chances = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    assert (chances / chances.sum(axis=1, keepdims=True)).tolist() == [[0, 1], [0.5, 0.5], [1, 0]]


def exp3_run(rule: Exp3, losses: Any, rounds: int, models: int) -> np.ndarray[Any, Any]:
    """[rounds, K] the PMFs of Exp3 on losses by round."""
    cumulative, subset = np.zeros((1, models)), np.ones((1, models), dtype=np.bool_)
    random, history = np.random.default_rng(0), []
    for step in range(rounds):
        pmf = rule.probabilities(cumulative, subset)
        history.append(pmf[0])
        chosen = draw_model(pmf, random.random(1))
        cumulative = cumulative + rule.estimates(losses(step), chosen, pmf, subset)
    return np.array(history)


def test_exp3_does_not_overflow() -> None:
    """Multiplied weights overflow after 2,840 rounds at K = 2, γ = 0.5."""
    for rate in (0.25, 10.0):
        pmf = exp3_run(Exp3(rate, 0.5, "one", 20_000), lambda step: np.array([[0.0, 1.0]]), 20_000, 2)
        assert np.isfinite(pmf).all()
        assert pmf.sum(axis=1) == pytest.approx(1)
        assert pmf[-1] == pytest.approx([0.75, 0.25])


def test_weights_of_unbounded_losses_do_not_become_0_over_0() -> None:
    """Sums of exp(-η Λ) underflow after some hundred rounds of unbounded cross-entropy."""
    cumulative = np.zeros((1, 3))
    for _ in range(2000):
        cumulative = cumulative + np.array([[9.0, 12.0, 700.0]])
        pmf = probabilities(cumulative, np.array([1.0]))
        assert np.isfinite(pmf).all()
    assert pmf.tolist() == [[1.0, 0.0, 0.0]]
    assert exp3_run(Exp3(1.0, 0.1, "all", 2000), lambda step: np.array([[9.0, 12.0, 700.0]]), 2000, 3)[-1] == (
        pytest.approx([0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3])
    )


def test_a_subset_of_underflowed_mass_is_renormalised() -> None:
    """Masked after the softmax, a subset whose weights all underflowed would have mass 0."""
    cumulative = np.array([[0.0, 5000.0, 5001.0]])
    subset = np.array([[False, True, True]])
    pmf = Exp3(1.0, 0.0, "one", 10).probabilities(cumulative, subset)
    assert pmf[0] == pytest.approx([0.0, 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert draw_model(pmf, np.array([0.999999])).tolist() == [2]


def with_a_broken_model(value: float) -> ofms.Dictionary:
    """The first model's outputs are not finite."""
    first, *others = DICTIONARY.models
    tensors = {name: torch.full_like(tensor, value) for name, tensor in first.tensors.items()}
    return replace(DICTIONARY, models=(replace(first, tensors=tensors), *others))


@pytest.mark.parametrize("given", [{}, {"loopback": True}], ids=["fused", "loopback"])
@pytest.mark.parametrize("policy", sorted(set(MODULES) - {"rms-ft", "fed-omd", "perfedavg"}))
def test_a_reward_that_is_no_number_does_not_pin_the_choice(policy: str, given: dict[str, Any]) -> None:
    """Elsewhere a reward of NaN stays the largest for ever. The other policies have one model, or choose at random."""
    settings: dict[str, Any] = {"exploration": 2} if policy == "explore-then-commit" else {}
    result = ofms.simulate(
        models=with_a_broken_model(3e38),
        stream=STREAM,
        policy=policy,
        budget="3",
        bandwidth="100%",
        history=4,
        **settings,
        **given,
    )
    assert np.isfinite(result.score).all()
    assert np.isfinite(result.regret()).all()
    assert np.isfinite(result.figures["best_in_hindsight"])
    chosen = result.history["prediction_weights"][:, :, 0].mean(axis=1)
    assert chosen[20:].mean() < 0.1, "it is hardly chosen any more"
