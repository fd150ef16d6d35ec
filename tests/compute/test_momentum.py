"""The directions in which a server moves its models, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ofms.compute.momentum import Momentum
from ofms.compute.protocol import Tensors


def update(*values: float) -> Tensors:
    return {"0.weight": torch.tensor(values[:2], dtype=torch.float64), "2.bias": torch.tensor(values[2:]).double()}


def flat(tensors: Tensors) -> list[float]:
    return [value for tensor in tensors.values() for value in tensor.tolist()]


def test_without_decays_a_direction_is_the_update_itself() -> None:
    updates = {1: update(1, 2, 3)}
    assert Momentum(0.0).add(updates) is updates


def test_momentum_adds_a_part_of_the_last_direction() -> None:
    momentum = Momentum(0.5)
    momentum.add({1: update(1, 2, 3)})
    assert flat(momentum.add({1: update(1, 0, -1)})[1]) == [1.5, 1, 0.5]
    momentum.forget([1])
    assert flat(momentum.add({1: update(1, 0, -1)})[1]) == [1, 0, -1]


def test_the_first_adaptive_direction_has_the_signs_of_the_update() -> None:
    """m/(1 - β) = u and v/(1 - β') = u²: each part is u/(|u| + a thousandth of the root mean square)."""
    found = flat(Momentum(0.9, 0.999).add({0: update(3, -4, 0)})[0])
    damping = 1e-3 * math.sqrt(25 / 3)
    assert found == pytest.approx([3 / (3 + damping), -4 / (4 + damping), 0])


def test_a_second_adaptive_direction_by_hand() -> None:
    """β = 1/2, β' = 3/4, u = (2, 1, 1), then (4, -1, 0): m = (5/2, -1/4, 1/4), v = (19/4, 7/16, 3/16)."""
    momentum = Momentum(0.5, 0.75)
    momentum.add({0: update(2, 1, 1)})
    found = flat(momentum.add({0: update(4, -1, 0)})[0])
    means, squares = [2.5 / 0.75, -0.25 / 0.75, 0.25 / 0.75], [4.75 / 0.4375, 0.4375 / 0.4375, 0.1875 / 0.4375]
    damping = 1e-3 * math.sqrt(sum(squares) / 3)
    assert found == pytest.approx([m / (math.sqrt(v) + damping) for m, v in zip(means, squares, strict=True)])


def test_adaptive_directions_do_not_depend_on_the_scale_of_updates() -> None:
    ones, thousands = Momentum(0.9, 0.999), Momentum(0.9, 0.999)
    for values in ((1.0, -2.0, 0.5), (0.1, 3.0, -1.0)):
        one, thousand = ones.add({0: update(*values)}), thousands.add({0: update(*(1e3 * each for each in values))})
        assert flat(thousand[0]) == pytest.approx(flat(one[0]))


def test_updates_of_zeros_move_nothing() -> None:
    assert flat(Momentum(0.9, 0.999).add({0: update(0, 0, 0)})[0]) == [0, 0, 0]


@pytest.mark.parametrize("of_squares", [0.0, 0.999])
def test_state_survives_arrays(of_squares: float) -> None:
    momentum, again = Momentum(0.9, of_squares), Momentum(0.9, of_squares)
    for model, values in ((0, (1.0, 2.0, 3.0)), (11, (3.0, 1.0, 0.0)), (0, (1.0, 1.0, 1.0))):
        momentum.add({model: update(*values)})
    again.load_arrays(momentum.to_arrays("momentum.") | {"other": torch.zeros(1).numpy()}, "momentum.")
    for model in (0, 11):
        following = {model: update(0.5, -0.5, 2)}
        assert flat(again.add(following)[model]) == flat(momentum.add(following)[model])
    assert again.to_arrays("x").keys() == momentum.to_arrays("x").keys()


def test_models_that_are_forgotten_begin_anew() -> None:
    momentum = Momentum(0.9, 0.999)
    first = flat(momentum.add({0: update(1, -2, 0.5)})[0])
    momentum.add({0: update(5, 5, 5)})
    momentum.forget([0])
    assert flat(momentum.add({0: update(1, -2, 0.5)})[0]) == first
    assert sorted(momentum.to_arrays("")) == [
        "0.0.weight",
        "0.2.bias",
        "counts",
        "squares.0.0.weight",
        "squares.0.2.bias",
    ]
