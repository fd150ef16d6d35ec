"""Parse rates: a number, a number over √T, or `tuned`. The latter two depend on the horizon T."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from ofms.core.errors import InvalidInput

_OVER_ROOT = re.compile(r"(?P<numerator>[0-9.eE+-]+)\s*/\s*sqrt\(T\)")


def resolve_rate(
    field: str, value: float | str, *, rounds: int | None, tuned: float | Callable[[], float] | None = None
) -> float:
    """A rate as a number.

    Parameters
    ----------
    rounds
        T, or None without a horizon: only numbers are accepted then.
    tuned
        The rate that `tuned` stands for, or a function that computes it if it is needed; None if there is none.

    Examples
    --------
    >>> resolve_rate("learning_rate", "10/sqrt(T)", rounds=200)
    0.7071067811865475
    >>> resolve_rate("learning_rate", "tuned", rounds=200, tuned=0.055)
    0.055
    >>> resolve_rate("learning_rate", "tuned", rounds=None, tuned=lambda: 0.055)
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: learning_rate = tuned: it depends on the horizon T; give rounds, or a rate as a \
number, or use a policy that needs no horizon
    """
    if value == "tuned" and tuned is not None:
        require_horizon(field, value, rounds)
        return tuned() if callable(tuned) else tuned
    over_root = _OVER_ROOT.fullmatch(value.strip()) if isinstance(value, str) else None
    rate: float | None
    try:
        rate = float(over_root["numerator"] if over_root else value)
    except ValueError:
        rate = None
    if over_root and rate is not None:
        rate /= math.sqrt(require_horizon(field, value, rounds))
    if rate is None or not math.isfinite(rate) or rate < 0:
        forms = "a number ≥ 0 or one over √T as in '10/sqrt(T)'" + (", or 'tuned'" if tuned is not None else "")
        raise InvalidInput(field, value, f"give {forms}")
    return rate


def require_horizon(field: str, value: object, rounds: int | None) -> int:
    """T, for a setting that depends on it; rejected without a horizon."""
    if rounds is None:
        remedy = "give rounds, or a rate as a number, or use a policy that needs no horizon"
        raise InvalidInput(field, value, f"it depends on the horizon T; {remedy}")
    return rounds
