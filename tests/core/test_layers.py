"""Arrays that grow round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ofms.core.layers import Layers
from ofms.core.states import Derived, flatten, unflatten


@dataclass(frozen=True, eq=False)
class Record:
    layers: Layers


def grown(rounds: int) -> Layers:
    layers = Layers.of(np.zeros((2, 0, 3, 4), dtype=np.float32))
    for number in range(rounds):
        layers = layers.append(np.full((2, 3, 4), number, dtype=np.float32))
    return layers


def test_to_append_copies_nothing_and_changes_no_earlier_layers() -> None:
    before = grown(2)
    after = before.append(np.full((2, 3, 4), 2, dtype=np.float32))
    assert len(before.parts) == 2
    assert all(one is other for one, other in zip(before.parts, after.parts, strict=False))
    assert after.whole.shape == (2, 3, 3, 4)
    assert after.whole[1, :, 2, 3].tolist() == [0, 1, 2]
    assert after.only(slice(1, None)).whole[1, :, 2, 3].tolist() == [1, 2]


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_layers_are_stored_as_one_array(rounds: int) -> None:
    arrays, values = flatten(Record(grown(rounds)))
    assert arrays["layers"].shape == (2, rounds, 3, 4)
    assert arrays["layers"].dtype == np.float32
    again = unflatten(Record(grown(0)), arrays, values)
    assert len(again.layers.parts) == rounds
    assert again.layers.whole.tolist() == arrays["layers"].tolist()
    with pytest.raises(ValueError, match="layers is float32"):
        unflatten(Record(grown(0)), {"layers": arrays["layers"][:1]}, values)


def test_parts_that_are_made_anew_are_left_out_wherever_they_stand() -> None:
    @dataclass
    class State:
        derived: Derived
        number: int

    assert flatten(State(Derived(), 3)) == ({}, {"number": 3})
