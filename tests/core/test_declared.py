"""Declared settings in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from ofms.core.choices import choices_in, members_of, remedy_for, suggest
from ofms.core.declared import REQUIRED, Doc, Range, Setting, Values, allowed_values, describe, shown
from ofms.core.errors import InvalidInput
from ofms.core.rates import resolve_rate
from ofms.policies.settings import describe_settings


@dataclass(frozen=True)
class Declared:
    needed: Annotated[int, Range(1, 10**9), Doc("Counted.")]
    share: Annotated[float, Range(0, 1), Doc("First."), Doc("A share.", "p = ε")] = 0.5
    step: Annotated[float, Doc("In a union.")] | Literal["N"] = "N"
    plain: bool = True


def test_settings_are_described() -> None:
    assert describe_settings(Declared) == [
        Setting("needed", "Counted.", REQUIRED, "a whole number of at least 1"),
        Setting("share", "A share.", "0.5", "a number from 0 to 1", "p = ε"),
        Setting("step", "In a union.", "N", "a number or N"),
        Setting("plain", "", "true", "true or false"),
    ]
    assert describe(Declared, {"plain": None})[-1].default == "none"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[int, Range(1), Values("one of the models")], "one of the models"),
        (Annotated[float, Range(0), Range(0, above=True)], "a number above 0"),
        (Annotated[int, Range(2, 1000)], "a whole number from 2 to 1,000"),
        (Annotated[int, Range(2, 10**9 - 1)], "a whole number from 2 to 999,999,999"),
        (Annotated[float, Range(0, 10**9)], "a number of at least 0"),
        (Annotated[str, Doc("")], "text"),
        (tuple[float, ...], "a list, each a number"),
        (list[Literal["a", "b"]], "a list, each a or b"),
        (Literal[1, None, "x"], "1, none, or x"),
        (dict[str, int], "a table"),
        (int | str | None, "a whole number, text, or none"),
    ],
)
def test_allowed_values_in_words(annotation: Any, words: str) -> None:
    assert allowed_values(annotation) == words


def test_ranges_contain_their_ends_unless_excluded() -> None:
    closed, opened = Range(0, 2), Range(0, 2, above=True)
    assert [value in closed for value in (-0.1, 0, 1, 2, 2.1)] == [False, True, True, True, False]
    assert 0 not in opened
    assert 2 in opened
    assert [value in Range(0) for value in (math.nan, math.inf, 1e300)] == [False, False, True]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((), "none"),
        ([], "none"),
        ({}, "none"),
        ({"a": 1}, "a table"),
        (object(), "a table"),
        (False, "false"),
        (3, "3"),
        ([1, "a"], "1, a"),
    ],
)
def test_values_as_in_a_file(value: object, text: str) -> None:
    assert shown(value) == text


def test_choices_and_members_are_found_inside_annotations() -> None:
    kind = Annotated[Literal["a"] | Annotated[Literal["b"], Doc("")] | None, Doc("")]
    assert choices_in(kind) == ("a", "b")
    assert len(members_of(kind)) == 3
    assert members_of(int) == ()


def test_close_words_are_suggested() -> None:
    assert suggest("clp", ["clip", "raw"]) == "did you mean 'clip'? use clip or raw"
    assert suggest("r", ["one"]) == "use one"
    assert suggest(3, ["a", "b", "c"]) == "use one of a, b, c"
    assert suggest("x" * 100 + "y", ["x" * 100]).startswith("did you mean")
    assert remedy_for(Literal["a"] | str | bool | int) == "use a, or a string, or true or false, or a whole number"


def test_ranges_in_words() -> None:
    assert str(Range(0, 1)) == "a number from 0 to 1"
    assert str(Range(0, 1000000, above=True)) == "a number above 0, up to 1,000,000"
    assert str(Range(2)) == "a number of at least 2"
    assert str(Range(2, above=True)) == "a number above 2"


@pytest.mark.parametrize("tuned", [None, 0.5])
def test_a_rate_that_is_none_is_rejected_with_what_is_possible(tuned: float | None) -> None:
    forms = "give a number ≥ 0 or one over √T as in '10/sqrt(T)'" + (", or 'tuned'" if tuned else "")
    for wrong in ("fast", "-1", "nan", "inf", "x/sqrt(T)"):
        with pytest.raises(InvalidInput) as error:
            resolve_rate("rate", wrong, rounds=4, tuned=tuned)
        assert error.value.remedy == forms
