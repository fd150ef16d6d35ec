"""The recent exchanges of late hedging, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofms.core.layers import Layers
from ofms.core.typing import AnyArray
from ofms.policies.late_rounds import Rounds, _one_of_each, _range
from ofms.policies.observations import Recent

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
        filling=layers(np.array([[True, True, False]] * 2), np.array([[False, True, True], [True, True, False]])),
        outside=layers(np.array([0.25, 0.25]), np.array([0.5, 0.0])),
        ways=layers(np.array([[0.5, 0.5]] * 2), np.array([[0.25, 0.75]] * 2)),
        ways_rate=layers(np.ones(2), 3 * np.ones(2)),
        ways_losses=np.array([[[0.5, 0.25]], [[0.0, 1.0]]]),
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
        "filling": ((2, 0, 3), "bool"),
        "outside": ((2, 0), "float64"),
        "ways": ((2, 0, 2), "float64"),
        "ways_rate": ((2, 0), "float64"),
    }
    arrays = {name: (part.shape, part.dtype.name) for name, part in vars(none).items() if isinstance(part, np.ndarray)}
    assert arrays == {
        "losses": ((2, 0, 3), "float64"),
        "ways_losses": ((2, 0, 2), "float64"),
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
    assert rounds.mark(rounds.final).without_final().granted(9).number.tolist() == [[9]], "also if it is the only one"


def test_exchanges_that_are_final_for_all_clients_are_dropped() -> None:
    rounds = example()
    left = rounds.without_final()
    assert (left.number.tolist(), left.final.tolist(), left.samples.tolist()) == ([[6]], [[False]] * 2, [[0]] * 2)
    assert left.rates.whole.tolist() == [[[2.0]]] * 2
    assert left.losses.shape == (2, 0, 3)
    assert (left.ways.whole.tolist(), left.ways_losses.shape) == ([[[0.25, 0.75]]] * 2, (2, 0, 2))
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
    assert rounds.filling.whole.tolist() == [
        [[False, False, True, True], [False, True, False, True]],
        [[False, False, True, True], [False, False, True, True]],
    ]
    assert rounds.outside.whole.tolist() == [[0.25, 0.5], [0.25, 0.0]], "as it was"
    assert rounds.ways_losses.tolist() == [[[0.5, 0.25]], [[0.0, 1.0]]]
    assert rounds.losses == pytest.approx(np.array([[[nan, nan, 1, 2]], [[nan, 4, 3, nan]]]), nan_ok=True)
    assert (rounds.number.tolist(), rounds.samples.tolist()) == ([[4, 6]], [[1, 0], [1, 0]])


def test_the_weights_of_retired_models_go_to_the_others_in_proportion() -> None:
    """The first model leaves, the other two stay in reverse order. Where it had all the weight, they share it."""
    rounds = example().with_models(np.array([2, 1]))
    assert rounds.members.whole[:, :, 0].tolist() == [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
    assert rounds.certain.whole.tolist() == [[[False, True], [False, True]], [[False, True], [False, False]]]
    assert rounds.filling.whole.tolist() == [[[False, True], [True, True]], [[False, True], [False, True]]]
    assert rounds.outside.whole.tolist() == [[0.5, 0.5], [0.5, 1.0]]
    assert {part.dtype.name for part in rounds.members.parts} == {"float32"}
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


def test_what_was_drawn_outside_stays_if_no_model_retires() -> None:
    """It is not computed anew from weights in single precision; what is left of it by rounding alone is nothing."""
    rounds = replace(example(), outside=layers(np.array([0.2, 1e-13]), np.array([0.4, 1e-11])))
    assert rounds.with_models(np.array([-1, 2, 0, 1])).outside.whole.tolist() == [[0.2, 0.4], [0.0, 1e-11]]


def test_all_certain_models_that_stay_are_inside() -> None:
    """The first of four models leaves. The others have weights 1/2, 1/4 and 1/4; the first and the last are certain."""
    rounds = replace(
        Rounds.none(1, 4, 1),
        members=layers(np.array([[[0.5, 0.25, 0.125, 0.125]]], dtype=np.float32)),
        mixture=layers(np.ones((1, 1))),
        certain=layers(np.array([[True, True, False, True]])),
        outside=layers(np.array([0.125])),
        losses=np.zeros((1, 1, 4)),
    ).with_models(np.array([1, 2, 3]))
    assert rounds.members.whole.tolist() == [[[[0.5, 0.25, 0.25]]]]
    assert rounds.outside.whole.tolist() == [[0.25]]


def test_nothing_is_outside_if_all_models_that_stay_are_certain() -> None:
    """Weights of fifty clients in single precision, whose sums in it are not those in double precision."""
    weights = np.random.default_rng(0).random((50, 1, 9)).astype(np.float32)
    rounds = replace(
        Rounds.none(50, 9, 1),
        members=layers(weights),
        mixture=layers(np.ones((50, 1))),
        certain=layers(np.arange(9) * np.ones((50, 1)) > 0),
        outside=layers(np.full(50, 0.1)),
        losses=np.zeros((50, 1, 9)),
    ).with_models(np.arange(1, 9))
    assert not rounds.outside.whole.any()


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
    assert [part.tolist() for part in _one_of_each(np.array([1, 3, 3]), 10)] == [[0, 1], [2]], "also after smaller ones"
    assert list(_one_of_each(np.zeros(0, dtype=np.int64), 2)) == []


def seen(outputs: list[list[list[float]]], targets: list[list[float]], exchange: list[list[int]]) -> Recent:
    """Samples of two clients, with the values of three models."""
    return Recent(np.array(outputs, dtype=np.float32)[..., None], np.array(targets), np.array(exchange))


def unlearnt() -> Rounds:
    nobody = np.zeros((2, 2), dtype=np.int64)
    losses, ways = np.zeros((2, 0, 3)), np.zeros((2, 0, 2))
    return replace(example(), losses=losses, ways_losses=ways, final=nobody > 0, samples=nobody)


def test_losses_of_an_exchange_are_those_of_its_samples() -> None:
    """The first client sees two samples in exchange 6, the second one two in exchange 4; plain losses.

    Pools of the first: 3 with the error 4, and 1 with 1. Of the second: 2 with 4, and, of two models, 4/3 with 16/9.
    All that the first one's pools need fills its budget. Of the second, the first model does, and the second one where
    it is known: 8/3 and 0.
    """
    recent = seen(
        [[[1, 2, 4], [0, 0, 2]], [[4, 0, 0], [0, nan, 4]]],
        [[1.0, 0.0], [0.0, 0.0]],
        [[6, 6], [4, 4]],
    )
    after = unlearnt().observe(recent, late=True, plain=True)
    last, first = [-4.0 - 1, -3.0 - 1, 5.0 + 3], [12 - 16 / 9, nan, -4 + 16 - 16 / 9]
    expected = np.array([[[nan] * 3, last], [first, [nan] * 3]])
    assert after.losses == pytest.approx(expected, nan_ok=True)
    assert after.samples.tolist() == [[0, 2], [2, 0]]
    assert np.isnan(after.ways_losses[[0, 1], [0, 1]]).all()
    assert after.ways_losses[0, 1, 1] == pytest.approx(0.0)
    assert after.ways_losses[1, 0, 1] == pytest.approx(64 / 9 - 4 + 0 - 16 / 9)
    newest = unlearnt().observe(recent, late=False, plain=True)
    assert newest.losses == pytest.approx(np.array([[[nan] * 3, last], [[nan] * 3] * 2]), nan_ok=True)
    assert newest.samples.tolist() == [[0, 2], [0, 0]], "the last exchange alone"
    mixed = unlearnt().observe(recent, late=True, plain=False)
    assert mixed.losses[0, 1, 1] != pytest.approx(-4.0), "at the price of the draw"


def test_what_was_learnt_from_samples_that_were_dropped_stays() -> None:
    """Of exchange 4 one of two samples is remembered. Only the output of a model that was not known is new."""
    learnt = np.array([[[1.0, 2.0, nan], [3.0, 4.0, nan]], [[5.0, 6.0, nan], [7.0, 8.0, 9.0]]])
    ways = np.array([[[0.5, 1.0], [1.5, 2.0]], [[2.5, 3.0], [3.5, 4.0]]])
    rounds = replace(unlearnt(), losses=learnt, ways_losses=ways, samples=np.array([[2, 1], [2, 1]]))
    known = [[[1.0, 2.0, nan], [1.0, 2.0, nan]], [[1.0, 2.0, nan], [1.0, 2.0, 4.0]]]
    after = rounds.observe(seen(known, [[1.0, 1.0]] * 2, [[4, 6]] * 2), late=True, plain=True)
    assert np.array_equal(after.losses, learnt, equal_nan=True)
    assert np.array_equal(after.ways_losses, ways)
    assert after.samples.tolist() == [[2, 1], [2, 1]]
    known[0][1][2] = 4.0
    after = rounds.observe(seen(known, [[1.0, 1.0]] * 2, [[4, 6]] * 2), late=True, plain=True)
    learnt[0, 1] = [-4.0, -3.0, 5.0]
    assert np.array_equal(after.losses, learnt, equal_nan=True)
    assert after.samples.tolist() == [[2, 1], [2, 1]]


def test_nothing_is_learnt_before_the_first_exchange() -> None:
    after = Rounds.none(2, 3, 1).observe(Recent.none(2, 3), late=True, plain=False)
    assert (len(after), after.losses.shape, after.samples.shape) == (0, (2, 0, 3), (2, 0))
