"""Choices of `Literal` types, and how error messages describe them."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", NoneType: "none"}


def choices_in(annotation: Any) -> tuple[Any, ...]:
    """The values of the `Literal`s in an annotation, also inside unions.

    >>> choices_in(float | Literal["N"])
    ('N',)
    """
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for member in members_of(annotation) for choice in choices_in(member))


def members_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; empty for any other annotation."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def admits_none(annotation: Any) -> bool:
    """Whether an annotation allows None.

    >>> admits_none(float | None), admits_none(float)
    (True, False)
    """
    return NoneType in (annotation, *members_of(annotation))


def remedy_for(annotation: Any) -> str:
    """The remedy for a value that is none of an annotation's choices.

    >>> remedy_for(Literal["clip", "raw"])
    'use one of clip, raw'
    >>> remedy_for(Literal["N"] | float | None)
    'use N, or a number, or none'
    >>> remedy_for(Literal["random"] | list[int])
    'use random, or a list'
    """
    choices = choices_in(annotation)
    listed = ", ".join(str(choice) for choice in choices)
    others = [_WORDS.get(member, "a list") for member in members_of(annotation) if not choices_in(member)]
    return ", or ".join([f"use one of {listed}" if len(choices) > 1 else f"use {listed}", *others])
