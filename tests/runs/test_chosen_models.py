"""A model that a policy chooses stays chosen while it is in use, whatever models come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.policies.late_hedge import Client
from ofms.runs.setup import Setup

# The last one comes later.
SIZES = np.array([2, 3, 3, 5])
CATALOGUE = Catalogue(("a", "b", "c", "d"), SIZES, SIZES, np.zeros(4, dtype=np.int64))


def setup(policy: str = "late-hedge", **settings: Any) -> Setup:
    budgets = np.array([20, 20])
    return Setup(CATALOGUE, (0, 1, 2), budgets, (0, 1), "100%", Schedule(50, 1), policy, settings).with_chosen_model()


def shared(made: Setup) -> int | None:
    assert isinstance(made.built.client, Client)
    return made.built.client.shared


def test_the_global_model_is_the_first_of_the_largest_and_stays_when_a_larger_one_comes() -> None:
    first = setup()
    assert (first.settings["model"], shared(first), first.built.uploaded) == ("b", 1, (1,))
    larger = first.after(Event(exchange=5, add=("d",)))
    assert (larger.settings["model"], shared(larger)) == ("b", 1)
    without = larger.after(Event(exchange=6, retire=("a",)))
    assert (without.settings["model"], shared(without), without.built.uploaded) == ("b", 0, (1,)), "by slot, b is 1"


def test_if_the_global_model_is_retired_the_largest_of_the_others_takes_its_place() -> None:
    larger = setup().after(Event(exchange=5, add=("d",)))
    assert larger.after(Event(exchange=6, retire=("b",))).settings["model"] == "d"
    named = setup(model="c")
    assert named.settings["model"] == "c"
    assert named.after(Event(exchange=5, retire=("c",))).settings["model"] == "b"


@pytest.mark.parametrize("settings", [{"fine_tuning_rate": 0}, {"fine_tuned": "used"}])
def test_without_a_global_model_none_is_chosen(settings: dict[str, Any]) -> None:
    made = setup(**settings)
    assert (made.settings.get("model"), shared(made)) == (None, None)
    switched = made.after(Event(exchange=5, settings={"fine_tuned": "global", "fine_tuning_rate": 1}))
    assert (switched.settings["model"], shared(switched)) == ("b", 1)
    back = switched.after(Event(exchange=6, settings=settings))
    assert (back.settings["model"], shared(back)) == (None, None)


def test_another_policy_chooses_its_model_when_it_comes() -> None:
    made = setup("mab").after(Event(exchange=5, policy="late-hedge"))
    assert (made.settings["model"], shared(made)) == ("b", 1)
    assert "model" not in setup("fed-omd").settings, "others have a default"


def test_a_model_that_is_not_in_the_dictionary_is_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"^model = z: give a name from the dictionary"):
        _ = setup(model="z").built
    assert shared(replace(setup(), settings={"model": 2})) == 2
