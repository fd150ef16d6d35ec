"""The quantities of docs/theory.md, written as they are defined there: for tests, small and slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ofms.core.typing import Floats

# The value and the gradient of a loss at a pool.
Loss = Callable[[Floats], tuple[float, Floats]]


def squared_error(target: float) -> Loss:
    return lambda pool: (float((pool[0] - target) ** 2), 2 * (pool - target))


def log_loss(label: int) -> Loss:
    def at(pool: Floats) -> tuple[float, Floats]:
        total = math.log(np.exp(pool - pool.max()).sum()) + pool.max()
        gradient = np.exp(pool - total)
        gradient[label] -= 1
        return float(total - pool[label]), gradient

    return at


def divergence(loss: Loss, pool: Floats, centre: Floats) -> float:
    """D(z, c): by how much a convex loss exceeds its tangent at c."""
    value, gradient = loss(centre)
    return loss(pool)[0] - value - float(gradient @ (pool - centre))


@dataclass(frozen=True, eq=False)
class Layout:
    """A split of the models: the certain ones, and `teeth` places for a draw of the others."""

    certain: list[int]
    others: list[int]
    teeth: int
    places: int
    rho: float

    def overlaps(self, weights: Floats) -> Floats:
        """[teeth, others] the probability that a tooth takes a model."""
        edges = np.concatenate([[0.0], np.cumsum(weights[self.others])]) / self.rho * self.teeth
        strata = np.arange(self.teeth)[:, None]
        return np.asarray(np.clip(np.minimum(edges[1:], strata + 1) - np.maximum(edges[:-1], strata), 0, 1))

    def draws(self, weights: Floats) -> Iterator[tuple[float, Floats]]:
        """Every draw: its probability, and the vote of all models."""
        inside = weights[self.certain].sum()
        calm = np.zeros(weights.size)
        if inside > 0:
            calm[self.certain] = weights[self.certain] / inside
        if self.rho == 0:
            yield 1.0, calm
            return
        chances = self.overlaps(weights)
        for hit in product(range(len(self.others)), repeat=self.teeth):
            chance = math.prod(chances[tooth, other] for tooth, other in enumerate(hit))
            if chance > 0:
                vote = (1 - self.rho) * calm
                for other in hit:
                    vote[self.others[other]] += self.rho / self.teeth
                yield chance, vote

    def inclusion(self, weights: Floats) -> Floats:
        """The probability that each model is held for the sake of the prediction."""
        chance = np.ones(weights.size)
        if self.rho > 0:
            chance[self.others] = 1 - np.prod(1 - self.overlaps(weights), axis=0)
        return chance


def lay_out(weights: Floats, costs: Floats, budget: float, visitor: int | None) -> Layout:
    """As few teeth as leave each of them at most the weight 1/n; heavier models are certain, or all if they fit."""
    if costs.sum() <= budget:
        return Layout(list(range(weights.size)), [], 0, weights.size, 0.0)
    free = budget - (0.0 if visitor is None else float(costs[visitor]))
    heaviest, order = float(costs.max()), np.argsort(-weights, kind="stable").tolist()
    teeth = 0
    while True:
        teeth += 1
        room, certain = free - teeth * heaviest, [] if visitor is None else [visitor]
        for model in order:
            if model != visitor and costs[model] <= room:
                certain.append(model)
                room -= float(costs[model])
        places = len(certain) - (visitor is not None) + teeth
        rho = max(0.0, 1 - float(weights[certain].sum()))
        if rho <= teeth / places + 1e-12 or free < (teeth + 1) * heaviest:
            break
    others = [model for model in range(weights.size) if model not in certain]
    return Layout(certain, others, teeth, places, float(weights[others].sum()))


def noise(layout: Layout, weights: Floats, outputs: Floats, loss: Loss) -> float:
    """A bound on E D(ŷ, c) over the draws: exact for one tooth."""
    if layout.rho == 0:
        return 0.0
    centre, share = weights @ outputs, weights[layout.others] / layout.rho
    certain, drawn = weights[layout.certain] @ outputs[layout.certain], outputs[layout.others]
    return float(share @ [divergence(loss, certain + layout.rho * each, centre) for each in drawn])


def relative_losses(weights: Floats, outputs: Floats, loss: Loss, scale: float) -> Floats:
    """q(k) = ⟨∇L(c), φ_k - c⟩ + λ D(φ_k, c)."""
    centre = weights @ outputs
    gaps = np.array([divergence(loss, each, centre) for each in outputs])
    return np.asarray((outputs - centre) @ loss(centre)[1] + scale * gaps)


def noise_scale(layout: Layout, weights: Floats, outputs: Floats, loss: Loss) -> float:
    """λ: the noise over the weights' diversity, at most 1."""
    centre = weights @ outputs
    diversity = sum(float(p) * divergence(loss, each, centre) for p, each in zip(weights, outputs, strict=True))
    return min(1.0, noise(layout, weights, outputs, loss) / diversity) if diversity > 1e-15 else 0.0


def mixed_loss(cumulative: Floats, rate: float, losses: Floats) -> float:
    """-(1/η) ln ⟨softmax(-η Q), exp(-η q)⟩."""
    return (log_mean(-rate * cumulative) - log_mean(-rate * (cumulative + losses))) / rate


def log_mean(values: Floats) -> float:
    return float(values.max() + math.log(np.exp(values - values.max()).mean()))


def softmax(values: Floats) -> Floats:
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())
