"""The recent exchanges of late hedging, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofms.core.layers import Layers
from ofms.core.typing import AnyArray
from ofms.policies.late_rounds import Rounds, _one_of_each, _range

nan = np.nan


def layers(*parts: AnyArray) -> Layers:
    whole = np.stack(parts, axis=1)
    return Layers(tuple(parts), whole[:, :0])


def example() -> Rounds:
    """Two exchanges (4 and 6) of two clients with one member and three models."""
    first, second = np.array([[[0.5, 0.25, 0.25]]] * 2), np.array([[[0.0, 0.5, 0.5]], [[1.0, 0.0, 0.0]]])
    one = np.ones((2, 1))
    return Rounds(
        members=layers(first.astype(np.float32), second.astype(np.float32)),
        mixture=layers(one, one),
        rates=layers(one, 2 * one),
        mixture_rate=layers(np.ones(2), np.ones(2)),
        certain=layers(np.array([[True, True, False]] * 2), np.array([[False, True, False], [True, False, False]])),
        outside=layers(np.array([0.25, 0.25]), np.array([0.5, 0.0])),
        thinning=layers(np.ones(2), np.array([1.0, 0.5])),
        losses=np.array([[[1.0, 2.0, nan]], [[3.0, nan, 4.0]]]),
        final=np.array([[True, False], [True, False]]),
        samples=np.array([[1, 0], [1, 0]]),
        number=np.array([[4, 6]]),
    )


def test_no_exchanges() -> None:
    none = Rounds.none(2, 3, 4)
    kinds = {
        name: (part.none.shape, part.none.dtype.name) for name, part in vars(none).items() if isinstance(part, Layers)
    }
    assert kinds == {
        "members": ((2, 0, 4, 3), "float32"),
        "mixture": ((2, 0, 4), "float64"),
        "rates": ((2, 0, 4), "float64"),
        "mixture_rate": ((2, 0), "float64"),
        "certain": ((2, 0, 3), "bool"),
        "outside": ((2, 0), "float64"),
        "thinning": ((2, 0), "float64"),
    }
    arrays = {name: (part.shape, part.dtype.name) for name, part in vars(none).items() if isinstance(part, np.ndarray)}
    assert arrays == {
        "losses": ((2, 0, 3), "float64"),
        "final": ((2, 0), "bool"),
        "samples": ((2, 0), "int64"),
        "number": ((1, 0), "int64"),
    }
    assert len(none) == 0


def test_the_last_exchange_is_the_one_that_was_granted() -> None:
    rounds = example()
    assert rounds.granted(6) is rounds
    later = rounds.granted(9)
    assert later.number.tolist() == [[4, 9]]
    assert later.losses is rounds.losses


def test_exchanges_that_are_final_for_all_clients_are_dropped() -> None:
    rounds = example()
    left = rounds.without_final()
    assert (left.number.tolist(), left.final.tolist(), left.samples.tolist()) == ([[6]], [[False]] * 2, [[0]] * 2)
    assert left.rates.whole.tolist() == [[[2.0]]] * 2
    assert left.losses.shape == (2, 0, 3)
    for final in ([[True, True], [False, True]], [[False, True], [False, True]]):
        unfinished = rounds.mark(np.array(final))
        assert unfinished.final.tolist() == final
        assert unfinished.without_final() is unfinished, "only the oldest ones are dropped, and for all clients"


def test_a_new_model_has_no_weight_in_earlier_exchanges() -> None:
    """All models stay, in another order, and one comes before them."""
    rounds = example().with_models(np.array([-1, 2, 0, 1]))
    assert rounds.members.whole[:, :, 0].tolist() == [
        [[0, 0.25, 0.5, 0.25], [0, 0.5, 0.0, 0.5]],
        [[0, 0.25, 0.5, 0.25], [0, 0.0, 1.0, 0.0]],
    ]
    assert rounds.members.whole.dtype == np.float32
    assert rounds.certain.whole.tolist() == [
        [[False, False, True, True], [False, False, False, True]],
        [[False, False, True, True], [False, False, True, False]],
    ]
    assert rounds.outside.whole.tolist() == [[0.25, 0.5], [0.25, 0.0]], "as it was"
    assert rounds.losses == pytest.approx(np.array([[[nan, nan, 1, 2]], [[nan, 4, 3, nan]]]), nan_ok=True)
    assert (rounds.number.tolist(), rounds.samples.tolist()) == ([[4, 6]], [[1, 0], [1, 0]])


def test_the_weights_of_retired_models_go_to_the_others_in_proportion() -> None:
    """The first model leaves, the other two stay in reverse order. Where it had all the weight, they share it."""
    rounds = example().with_models(np.array([2, 1]))
    assert rounds.members.whole[:, :, 0].tolist() == [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    assert rounds.certain.whole.tolist() == [[[False, True], [False, True]], [[False, True], [False, False]]]
    assert rounds.outside.whole.tolist() == [[0.5, 0.5], [0.5, 1.0]]
    assert rounds.losses == pytest.approx(np.array([[[nan, 2]], [[4, nan]]]), nan_ok=True)


def test_unequal_weights_of_two_members_when_a_model_retires() -> None:
    """Members 0.6, 0.3, 0.1 and 0.2, 0.2, 0.6 with shares 3/4 and 1/4; the second model leaves.

    They become 6/7, 1/7 and 1/4, 3/4: the pool is 0.75 · 6/7 + 0.25 · 1/4 for the first model, which is certain.
    """
    members = np.array([[[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]])
    rounds = replace(
        Rounds.none(1, 3, 2),
        members=layers(members.astype(np.float32)),
        mixture=layers(np.array([[0.75, 0.25]])),
        certain=layers(np.array([[True, False, False]])),
        outside=layers(np.array([0.5])),
        losses=np.zeros((1, 1, 3)),
    ).with_models(np.array([0, 2, -1]))
    assert rounds.members.whole[0, 0] == pytest.approx(np.array([[6 / 7, 1 / 7, 0], [0.25, 0.75, 0]]))
    assert rounds.outside.whole[0, 0] == pytest.approx(1 - (0.75 * 6 / 7 + 0.25 / 4))
    assert rounds.certain.whole.tolist() == [[[True, False, False]]]
    assert rounds.losses == pytest.approx(np.array([[[0, 0, nan]]]), nan_ok=True)


def test_no_exchanges_with_other_models_are_none() -> None:
    rounds = Rounds.none(2, 3, 1).with_models(np.array([0, -1]))
    assert (rounds.losses.shape, rounds.members.none.shape) == ((2, 0, 2), (2, 0, 1, 2))


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([3, 4, 5], slice(3, 6)),
        ([7], slice(7, 8)),
        ([], []),
        ([3, 5], [3, 5]),
        ([5, 4, 3], [5, 4, 3]),
        ([3, 5, 4, 6], [3, 5, 4, 6]),
        ([3, 4, 4, 6], [3, 4, 4, 6]),
    ],
)
def test_successive_places_are_a_slice(places: list[int], found: object) -> None:
    given = _range(np.array(places, dtype=np.int64))
    assert (given if isinstance(given, slice) else given.tolist()) == found


def test_parts_in_which_all_keys_differ() -> None:
    keys = np.array([5, 2, 5, 7, 2, 5])
    assert [part.tolist() for part in _one_of_each(keys, 10)] == [[0, 1, 3], [2, 4], [5]]
    assert [part.tolist() for part in _one_of_each(keys, 2)] == [[0, 1], [3], [2, 4], [5]]
    assert [part.tolist() for part in _one_of_each(np.array([1, 2, 3]), 2)] == [[0, 1], [2]]
    assert list(_one_of_each(np.zeros(0, dtype=np.int64), 2)) == []
