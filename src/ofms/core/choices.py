"""Choices of `Literal` types, and how error messages describe them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", NoneType: "none"}
# Of a longer word, comparing all letters takes long.
_LONGEST_WORD = 100


def choices_in(annotation: Any) -> tuple[Any, ...]:
    """The values of the `Literal`s in an annotation, also inside unions.

    >>> choices_in(float | Literal["N"])
    ('N',)
    """
    if get_origin(annotation) is Annotated:
        return choices_in(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for member in members_of(annotation) for choice in choices_in(member))


def members_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; empty for any other annotation."""
    if get_origin(annotation) is Annotated:
        return members_of(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def admits_none(annotation: Any) -> bool:
    """Whether an annotation allows None.

    >>> admits_none(float | None), admits_none(float)
    (True, False)
    """
    return NoneType in (annotation, *members_of(annotation))


def suggest(word: object, known: Iterable[str]) -> str:
    """The remedy for a word that is none of the known ones: the one that is meant, if one is close, and all.

    >>> suggest("regresion", ["classification", "regression"])
    "did you mean 'regression'? use classification or regression"
    >>> suggest("rows", ["clip", "saturate", "raw"])
    'use one of clip, saturate, raw'
    """
    names = list(known)
    close = difflib.get_close_matches(word[:_LONGEST_WORD], names, n=1) if isinstance(word, str) else []
    hint = f"did you mean {close[0]!r}? " if close else ""
    return hint + (f"use {' or '.join(names)}" if len(names) < 3 else f"use one of {', '.join(names)}")


def remedy_for(annotation: Any, value: object = None) -> str:
    """The remedy for a value that is none of an annotation's choices.

    >>> remedy_for(Literal["clip", "raw"])
    'use clip or raw'
    >>> remedy_for(Literal["N"] | float | None)
    'use N, or a number, or none'
    >>> remedy_for(Literal["random"] | list[int], "randm")
    "did you mean 'random'? use random, or a list"
    >>> remedy_for(Literal["N"] | Annotated[float, "above 0"])
    'use N, or a number'
    """
    listed = suggest(value, [str(choice) for choice in choices_in(annotation)])
    others = [_WORDS.get(_bare(member), "a list") for member in members_of(annotation) if not choices_in(member)]
    return ", or ".join([listed, *others])


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
