"""Settings of every policy are checked where they are declared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ofms
from ofms.core.errors import InvalidInput
from ofms.policies import MODULES, Count, Share, options
from ofms.policies.local_updates import Epochs, GradientStep, Objective, tunes_pool
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.ofms_ft_theory import server_not_covered
from ofms.policies.registry import build_policy, policy_summary, settings_type
from ofms.policies.settings import check_settings
from tests.problems import fleet_of

NOT_NUMBERS = [math.nan, math.inf, -math.inf]


def numeric_settings() -> list[tuple[str, str]]:
    return [
        (policy, field.name)
        for policy in MODULES
        for field in fields(settings_type(policy))
        if any(word in str(get_type_hints(settings_type(policy))[field.name]) for word in ("int", "float"))
    ]


@pytest.mark.parametrize(("policy", "name"), numeric_settings())
@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1, -0.5])
def test_a_number_out_of_range_is_rejected_by_name(policy: str, name: str, value: float) -> None:
    kind = settings_type(policy)
    in_a_list = name in ("memories", "subset")
    settings = kind(**{name: [value] if in_a_list else value})
    with pytest.raises(ofms.InvalidInput) as error:
        build_policy(policy, settings, fleet_of([4, 3, 2], [8, 9], rounds=5))
    assert error.value.field in (name, "model"), "the index of a model in a list is named as such"


@pytest.mark.parametrize(("policy", "name"), [each for each in numeric_settings() if each[1] in ("window", "warm_up")])
@pytest.mark.parametrize("value", [2**63, 10**30])
def test_counts_that_overflow_are_rejected(policy: str, name: str, value: int) -> None:
    with pytest.raises(ofms.InvalidInput, match=rf"^{name} = {value}: give a number from . to 1,000,000,000$"):
        check_settings(settings_type(policy)(**{name: value}))


@dataclass(frozen=True)
class Own:
    """Settings of a user's policy."""

    epsilon: Share = 0.1
    count: Count = 1
    plain: float = 0.0
    pair: tuple[int, str] = (1, "a")
    some: tuple[float, ...] = ()


@given(st.floats() | st.integers())
def test_a_share_is_a_finite_number_from_0_to_1(value: float) -> None:
    if 0 <= value <= 1:
        check_settings(Own(epsilon=value))
    else:
        with pytest.raises(ofms.InvalidInput, match=r"epsilon = .*: give a number from 0 to 1"):
            check_settings(Own(epsilon=value))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"plain": math.nan}, "plain = nan: give a finite number"),
        ({"some": [1.0, math.inf]}, r"some = \[1.0, inf\]: give a list, each a finite number"),
        ({"count": 1.5}, "count = 1.5: give a number from 1"),
        ({"pair": 3}, "pair = 3: give"),
    ],
)
def test_numbers_are_finite(given: dict[str, Any], message: str) -> None:
    check_settings(Own())
    with pytest.raises(ofms.InvalidInput, match=message):
        check_settings(Own(**given))


@pytest.mark.parametrize(("policy", "setting"), [("ofms-ft", {"server_step": -1}), ("mab", {"exploration": 5})])
def test_settings_are_rejected_before_anything_is_trained(
    policy: str, setting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ofms.InvalidInput, match=f"{next(iter(setting))} = .*: give a number"):
        ofms.simulate("digits", policy=policy, rounds=2, **setting)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"loss_bound": "raw"}, "the selection loss is not bounded (a1)"),
        ({"loss_bound": "saturate"}, ""),
        ({"importance_cap": 2.0}, "the importance weights are capped"),
        ({"importance_cap": 2.0, "gradient_weight": "use"}, ""),
        ({"gradient_weight": "use"}, ""),
        ({"window": 2}, "the fine-tuning loss averages a window"),
        ({"warm_up": 1}, "the first rounds do not fine-tune"),
        ({"server_step": "N"}, "the server does not apply the mean of (3r2)"),
        ({"window": 2, "warm_up": 1}, "the fine-tuning loss averages a window, the first rounds do not fine-tune"),
    ],
)
def test_settings_that_the_servers_theorem_does_not_cover_are_named(changed: dict[str, Any], reason: str) -> None:
    assert server_not_covered(OFMSFT(**changed)) == reason


def test_regression_fine_tunes_the_pool_if_the_objective_is_left_open() -> None:
    def step(objective: Objective) -> GradientStep:
        return GradientStep(0.1, window=1, warm_up=0, objective=objective)

    tasks = ("classification", "regression")
    assert [tunes_pool(step("own"), task) for task in tasks] == [False, False]
    assert [tunes_pool(step("pool"), task) for task in tasks] == [True, True]
    assert [tunes_pool(step("auto"), task) for task in tasks] == [False, True]
    assert [tunes_pool(local, "regression") for local in (None, Epochs(0.1, 1, 1, 1, 0))] == [False, False]


def test_a_policy_is_summarised_by_the_first_line_of_its_file() -> None:
    assert policy_summary("fed-poe").startswith("Fed-POE: a model fine-tuned by the client alone")


@dataclass(frozen=True)
class Described:
    """Settings of many kinds, without meanings."""

    number: int | str = 1
    optional: Count | None = None
    letter: Literal["N"] | Count = 1
    one: Literal["N"] | None = None
    word: Literal["clip", "raw", "saturate"] | None = "clip"
    numbers: tuple[float, ...] = ()
    names: list[str] = field(default_factory=list)
    place: Path = Path()
    flag: bool = False


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("number", None, "give a whole number or text"),
        ("optional", 0, "give a number from 1 to 1,000,000,000, or leave it out"),
        ("letter", "M", "give a number from 1 to 1,000,000,000, or 'N'"),
        ("one", "M", "'N', or leave it out"),
        ("word", "rw", "did you mean 'raw'? use one of clip, raw, saturate, or leave it out"),
        ("numbers", ("a",), "give a list, each a finite number"),
        ("names", [1], "give a list, each text"),
        ("place", 3, "give Path"),
        ("flag", 3, "give true or false"),
    ],
)
def test_a_remedy_says_what_is_possible(name: str, value: object, remedy: str) -> None:
    with pytest.raises(ofms.InvalidInput) as error:
        check_settings(Described(**{name: value}))  # type: ignore[arg-type]
    assert (error.value.field, error.value.remedy) == (name, remedy)
    check_settings(Described())


def test_settings_as_objects_are_checked() -> None:
    with pytest.raises(InvalidInput, match=r"^window = 0"):
        options.policy_of(ofms.LateHedge(window=0))
    assert options.policy_of(ofms.LateHedge(window=7))[1]["window"] == 7
