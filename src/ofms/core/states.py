"""Convert states to and from plain arrays and values, to store them without pickling."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ofms.core.layers import Layers
from ofms.core.typing import AnyArray

T = TypeVar("T")


class Derived:
    """A part of a state that follows from catalogue and budgets: it is not stored, but made anew."""


def flatten(state: object, prefix: str = "") -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """The arrays and the other values of a dataclass, nested ones included, by path.

    >>> from ofms.core.packing import Packing
    >>> flatten(Packing(np.array([1]), 3))
    ({'bin': array([1])}, {'count': 3})
    """
    arrays: dict[str, AnyArray] = {}
    values: dict[str, Any] = {}
    for name, value in _parts(state):
        if isinstance(value, Derived):
            continue
        if isinstance(value, np.ndarray):
            arrays[prefix + name] = value
        elif isinstance(value, Layers):
            arrays[prefix + name] = value.whole
        elif is_dataclass(value):
            inner_arrays, inner_values = flatten(value, f"{prefix}{name}.")
            arrays |= inner_arrays
            values |= inner_values
        else:
            values[prefix + name] = value
    return arrays, values


def unflatten(template: T, arrays: dict[str, AnyArray], values: dict[str, Any], prefix: str = "") -> T:
    """Rebuild a state like `template` from flattened content; KeyError or ValueError if it does not fit.

    An axis of length 0 in the template may have any length: it grows from round to round.
    """
    changes: dict[str, Any] = {}
    for name, value in _parts(template):
        if isinstance(value, Derived):
            continue
        if isinstance(value, np.ndarray):
            changes[name] = _checked(arrays[prefix + name], value, prefix + name)
        elif isinstance(value, Layers):
            changes[name] = Layers.of(_checked(arrays[prefix + name], value.none, prefix + name))
        elif is_dataclass(value):
            changes[name] = unflatten(value, arrays, values, f"{prefix}{name}.")
        else:
            changes[name] = values[prefix + name]
    made: T = replace(template, **changes)  # type: ignore[type-var]
    return made


def _checked(found: AnyArray, expected: AnyArray, path: str) -> AnyArray:
    if not _fits(found.shape, expected.shape) or found.dtype != expected.dtype:
        raise ValueError(f"{path} is {found.dtype}{list(found.shape)}, not {expected.dtype}{list(expected.shape)}")
    return found


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(found) == len(expected) and all(want in (0, have) for have, want in zip(found, expected, strict=True))


def _parts(state: object) -> list[tuple[str, Any]]:
    if not is_dataclass(state):
        raise TypeError(f"a state is a dataclass, not {type(state).__name__}")
    return [(field.name, getattr(state, field.name)) for field in fields(state)]
