"""Types of settings, and their validation: an error names the setting and the allowed values.

A policy's settings are a frozen dataclass. Choices are `Literal` types; ranges, and with `Doc` what a setting means,
are annotations, from which `ofms list --settings` and docs/settings.md are made:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Settings:
...     epsilon: Annotated[Share, Doc("The share of random draws.")] = 0.1
...     loss_bound: LossBound = "clip"
>>> check_settings(Settings(epsilon=5.0))
Traceback (most recent call last):
...
ofms.core.errors.InvalidInput: epsilon = 5.0: give a number from 0 to 1
>>> check_settings(Settings(loss_bound="soft"))
Traceback (most recent call last):
...
ofms.core.errors.InvalidInput: loss_bound = soft: use one of clip, saturate, raw

A setting that is added to a policy with published figures is annotated with `ADDED`: at its default it is not part of a
run's identity, so that the figures of earlier runs are found again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ofms.core.choices import admits_none, choices_in, members_of, suggest
from ofms.core.declared import Doc, Range, Setting, Values, describe
from ofms.core.errors import InvalidInput

# Numbers of samples, rounds or clients: more than that overflow somewhere.
_MOST_ROUNDS = 10**9
# Marks a setting that its policy did not have when figures of it were published.
ADDED = "added after figures were published"

# Types of settings.
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1, _MOST_ROUNDS)]
Round = Annotated[int, Range(0, _MOST_ROUNDS)]
Positive = Annotated[float, Range(0, above=True)]
# `ofms.core.rates.resolve_rate` checks them.
Rate = Annotated[float | str, Values("a number of at least 0, or one over √T as in 10/sqrt(T)")]
TunedRate = Annotated[float | str, Values("a number of at least 0, one over √T as in 10/sqrt(T), or tuned")]

# Settings that several policies have.
LossBound = Annotated[
    Literal["clip", "saturate", "raw"],
    Doc(
        "How the losses that selection learns from are bounded to [0, 1], as the theorems assume; raw: not at all.",
        "clip: min(L, 1); saturate: 1 - e^(-L)",
    ),
]
ServerStep = Annotated[
    Annotated[float, Range(0)] | Literal["N"],
    Doc(
        "Multiplies the mean over clients: 1 as in the paper's text; N for the sum, as in its experiments.",
        "(3r2), times the step",
    ),
]
FineTuningRate = Annotated[Rate, Doc("η_f, the clients' step size; 0 freezes the dictionary.", "(1r2)")]
Window = Annotated[
    Count, Doc("The number of samples that the fine-tuning loss averages; with 1, the current one.", "(2r2)")
]
WarmUp = Annotated[Round, Doc("The first round that fine-tunes.")]
Exploration = Annotated[
    Share, Doc("γ, the share of uniform draws that is mixed into the probabilities.", "(1 - γ) w/Σw + γ/K")
]
ModelName = Annotated[int | str, Values("the name or the index of a model")]
LocalRate = Annotated[Rate, Doc("The step size of local stochastic gradient descent.")]
Passes = Annotated[Count, Doc("Passes over the window in an exchange.")]
BatchSize = Annotated[Count, Doc("The number of samples of a batch.")]
KeptSamples = Annotated[Count, Doc("The number of samples that a client keeps.")]
UploadGroups = Annotated[
    Count | None,
    Doc("The number of groups, one of which uploads; none: from the bandwidth. With 1, all do."),
]

_WORDS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
_STORABLE = (int, float, str, bool, type(None), list, tuple, dict)


def identifying(settings: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Settings of a dataclass `kind` that identify a run: without those that were `ADDED` and have their default.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     epsilon: Share = 0.1
    ...     decay: Annotated[Share, ADDED] = 1.0
    >>> identifying({"epsilon": 0.1, "decay": 1.0}, Settings), identifying({"decay": 0.5}, Settings)
    ({'epsilon': 0.1}, {'decay': 0.5})
    """
    hints = get_type_hints(kind, include_extras=True)
    defaults = {each.name: each.default for each in fields(kind) if ADDED in get_args(hints[each.name])}
    return {name: value for name, value in settings.items() if name not in defaults or value != defaults[name]}


def describe_settings(kind: type[Any]) -> list[Setting]:
    """The settings of a dataclass as people read them."""
    return describe(kind, {each.name: each.default for each in fields(kind) if each.default is not MISSING})


def check_settings(settings: Any) -> None:
    """Reject a setting that is not one of its choices, or is out of range."""
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if not _fits(value, kind):
            raise InvalidInput(name, value, _remedy(kind, value))


def require_types(policy: str, kind: type[Any]) -> None:
    """Reject settings of types that no file can hold."""
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidInput("policy", policy, f"the types of its settings cannot be read ({error})") from None
    for name, hint in hints.items():
        if (wrong := _unstorable(hint)) is not None:
            remedy = f"its setting {name} is a {wrong.__name__}; use int, float, str, bool, Literal, or a list of them"
            raise InvalidInput("policy", policy, remedy)


def _unstorable(kind: Any) -> type[Any] | None:
    """A type within an annotation that TOML does not have."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return None if kind in _STORABLE else kind
    parts = () if get_origin(kind) is Literal else get_args(kind)
    return next((found for part in parts if (found := _unstorable(part)) is not None), None)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is Annotated:
        base, *limits = get_args(kind)
        return _fits(value, base) and all(value in limit for limit in limits if isinstance(limit, Range))
    if parts := members_of(kind):
        return any(_fits(value, part) for part in parts)
    if kind in (int, float):
        # NumPy's numbers share no base class with Python's; a bool is not accepted as a number.
        number = not isinstance(value, bool | str) and hasattr(value, "__index__" if kind is int else "__float__")
        return number and (kind is int or math.isfinite(value))
    if get_origin(kind) in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(each, part) for each in value for part in _element(kind))
    return not isinstance(kind, type) or isinstance(value, kind)


def _remedy(kind: Any, value: object) -> str:
    if words := [each.words for each in get_args(kind) if isinstance(each, Values)]:
        return f"give {words[-1]}"
    choices, ranges = choices_in(kind), _ranges(kind)
    parts = [f"give {limit}" for limit in ranges]
    if choices:
        parts.append(suggest(value, map(str, choices)) if len(choices) > 1 else f"{choices[0]!r}")
    if admits_none(kind):
        parts.append("leave it out")
    return ", or ".join(parts) or f"give {_description(kind)}"


def _description(kind: Any) -> str:
    if described := members_of(kind):
        return " or ".join(_description(part) for part in described)
    if elements := _element(kind):
        return f"a list, each {_description(elements[0])}"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _element(kind: Any) -> tuple[Any, ...]:
    """The type of the elements of `list[T]` and `tuple[T, ...]`; empty for any other."""
    parts = get_args(kind)
    repeated = get_origin(kind) is list or (get_origin(kind) is tuple and parts[1:] == (...,))
    return parts[:1] if repeated else ()


def _ranges(kind: Any) -> list[Range]:
    if get_origin(kind) is Annotated:
        base, *extras = get_args(kind)
        return [limit for limit in extras if isinstance(limit, Range)] or _ranges(base)
    return [limit for part in members_of(kind) for limit in _ranges(part)]
