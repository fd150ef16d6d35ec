"""Declared settings: meaning, allowed values and equation stand in a field's annotation, beside its type.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Greedy:
...     epsilon: Annotated[float, Range(0, 1), Doc("The share of random draws.", "p = (1 - ε) p* + ε/K")] = 0.1
>>> describe(Greedy, {"epsilon": 0.1})
[Setting(name='epsilon', meaning='The share of random draws.', default='0.1', values='a number from 0 to 1', \
equation='p = (1 - ε) p* + ε/K')]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ofms.core.choices import members_of

# For a setting that has no default.
REQUIRED = "required"
_GUARD = 10**9
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    bytes: "bytes",
    NoneType: "none",
}


@dataclass(frozen=True)
class Doc:
    """What a setting means, and the equation it is part of."""

    meaning: str
    equation: str = ""


@dataclass(frozen=True)
class Values:
    """The allowed values of a setting in words, where its type says too little."""

    words: str


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; `above` excludes `least` itself."""

    least: float
    most: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        low = value > self.least if self.above else value >= self.least
        return math.isfinite(value) and low and value <= self.most

    def __str__(self) -> str:
        if self.most < math.inf:
            first = f"above {self.least:g}, up" if self.above else f"from {self.least:g}"
            return f"a number {first} to {self.most:,.15g}"
        return f"a number {'above' if self.above else 'of at least'} {self.least:g}"


@dataclass(frozen=True)
class Setting:
    """A setting as people read it."""

    name: str
    meaning: str
    default: str
    values: str
    equation: str = ""


def describe(kind: type[Any], defaults: Mapping[str, Any]) -> list[Setting]:
    """The settings that a record declares, with their `defaults`; a name without one is required."""
    found = []
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        doc = (_docs(annotation) or [Doc("")])[-1]
        default = shown(defaults[name]) if name in defaults else REQUIRED
        found.append(Setting(name, doc.meaning, default, allowed_values(annotation), doc.equation))
    return found


def allowed_values(annotation: Any) -> str:
    """The values that an annotation allows, in words.

    >>> allowed_values(Annotated[int, Range(1)] | Literal["N"] | None), allowed_values(list[str])
    ('a whole number of at least 1, N, or none', 'a list, each text')
    """
    parts = _alternatives(annotation)
    return " or ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])}, or {parts[-1]}"


def _alternatives(annotation: Any) -> list[str]:
    if get_origin(annotation) is Annotated:
        base, *extras = get_args(annotation)
        words = [each.words for each in extras if isinstance(each, Values)]
        ranges = [_range(base, each) for each in extras if isinstance(each, Range)]
        return (words or ranges)[-1:] or _alternatives(base)
    if members := members_of(annotation):
        return [part for member in members for part in _alternatives(member)]
    if get_origin(annotation) is Literal:
        return [shown(choice) for choice in get_args(annotation)]
    if get_origin(annotation) in (list, tuple):
        return [f"a list, each {allowed_values(get_args(annotation)[0])}"]
    return [_WORDS.get(annotation, "a table")]


def _range(base: Any, limits: Range) -> str:
    """Limits in words, without one that only guards against overflow."""
    if limits.most >= _GUARD:
        limits = replace(limits, most=math.inf)
    return str(limits).replace("a number", "a whole number") if base is int else str(limits)


def _docs(annotation: Any) -> list[Doc]:
    """The docs of an annotation, or of the members of a union."""
    own = [each for each in get_args(annotation) if isinstance(each, Doc)]
    return own or [doc for member in members_of(annotation) for doc in _docs(member)]


def shown(value: Any) -> str:
    """A value as in a configuration file.

    >>> shown((0, 16)), shown(None), shown(True), shown("tuned"), shown(0.1)
    ('0, 16', 'none', 'true', 'tuned', '0.1')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, dict):
        return "none" if not value else "a table"
    return str(value) if isinstance(value, str | int | float) else "a table"
