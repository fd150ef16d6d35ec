"""Models in an order of preference, and those that fit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ofms.policies.filling import Order, fill, storage


@given(st.integers(1, 70), st.integers(1, 5), st.integers(0, 2**32), st.booleans())
def test_models_are_ordered_by_weight_and_equal_ones_by_number(
    models: int, clients: int, seed: int, ties: bool
) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 4, (models, clients)) / 4 if ties else random.random((models, clients))
    order = Order.falling(weights, np.ones(models, dtype=np.int64))
    expected = np.argsort(-weights, axis=0, kind="stable")
    assert order.of(np.broadcast_to(np.arange(models)[:, None], weights.shape)).tolist() == expected.tolist()
    assert order.back(order.of(weights)).tolist() == weights.tolist()


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=20))
def test_numbers_rise(numbers: list[int]) -> None:
    order = Order.rising(np.array(numbers)[:, None], np.ones(len(numbers), dtype=np.int64))
    assert order.place[:, 0].tolist() == sorted(range(len(numbers)), key=lambda model: numbers[model])


@given(st.data())
def test_what_fits_is_taken_in_order(data: st.DataObject) -> None:
    models, clients = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # Large models need more bits than small ones.
    unit = data.draw(st.sampled_from([1, 10**6, 2**33]))
    costs, room = unit * random.integers(0, 9, models), unit * random.integers(-2, 40, clients)
    candidates, weights = random.random((models, clients)) < 0.7, random.random((models, clients))
    most = random.integers(-1, 4, clients) if data.draw(st.booleans()) else None
    order = Order.falling(weights, costs)
    chosen = order.back(fill(order.costs_of(candidates), room, most))
    for client in range(clients):
        left, taken = max(0, int(room[client])), set[int]()
        for model in np.argsort(-weights[:, client]).tolist():
            if most is not None and len(taken) >= most[client]:
                break
            if candidates[model, client] and costs[model] <= left:
                left -= int(costs[model])
                taken.add(model)
        assert set(np.flatnonzero(chosen[:, client]).tolist()) == taken
    assert storage(chosen, costs).tolist() == (costs @ chosen).tolist()


def test_models_that_fit_by_hand() -> None:
    """In the order of weights 0.5, 0.3, 0.2 of models 2, 0, 1, which take 4, 3, 2 bytes; then at most one of them."""
    weights, costs = np.array([[0.3] * 4, [0.2] * 4, [0.5] * 4]), np.array([3, 2, 4])
    order, everybody = Order.falling(weights, costs), np.ones((3, 4), dtype=np.bool_)
    room = np.array([9, 6, 3, -1])
    chosen = order.back(fill(order.costs_of(everybody), room))
    assert chosen.T.tolist() == [[True, True, True], [False, True, True], [True, False, False], [False, False, False]]
    once = order.back(fill(order.costs_of(everybody), room, np.array([1, 2, 1, 1])))
    assert once.T.tolist() == [[False, False, True], [False, True, True], [True, False, False], [False, False, False]]
    equal = order.back(fill(order.costs_of(everybody), np.array([4, 4, 4, 4]), np.array([0, 1, 1, 1])))
    assert equal.T.tolist() == [[False, False, False], *[[False, False, True]] * 3], "what fits exactly"
    rising = Order.rising(np.array([[7], [-1], [3]]), costs)
    assert rising.of(np.array([[0], [1], [2]])).ravel().tolist() == [1, 2, 0]
    large = Order.falling(weights, 2**40 * costs)
    assert large.costs_of(everybody)[:, 0].tolist() == [2**42, 3 * 2**40, 2**41]
    assert fill(large.costs_of(everybody), 2**40 * room).T[0].tolist() == [True, True, True]
    assert fill(order.costs_of(everybody), np.full(4, 2**62)).all(), "room that does not fit the numbers of costs"
