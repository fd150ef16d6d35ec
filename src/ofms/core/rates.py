"""Parse rates: a number, a number over √T, or `tuned`."""

from __future__ import annotations

import math
import re

from ofms.core.errors import InvalidInput

_OVER_ROOT = re.compile(r"(?P<numerator>[0-9.eE+-]+)\s*/\s*sqrt\(T\)")


def resolve_rate(field: str, value: float | str, *, rounds: int, tuned: float | None = None) -> float:
    """A rate as a number.

    >>> resolve_rate("learning_rate", "10/sqrt(T)", rounds=200)
    0.7071067811865475
    >>> resolve_rate("learning_rate", "tuned", rounds=200, tuned=0.055)
    0.055
    """
    rate: float | None = None
    if isinstance(value, str):
        if value == "tuned" and tuned is not None:
            return tuned
        over_root = _OVER_ROOT.fullmatch(value.strip())
        try:
            rate = float(over_root["numerator"]) / math.sqrt(rounds) if over_root else float(value)
        except ValueError:
            rate = None
    else:
        rate = float(value)
    if rate is None or not math.isfinite(rate) or rate < 0:
        forms = "a number ≥ 0 or one over √T as in '10/sqrt(T)'" + (", or 'tuned'" if tuned is not None else "")
        raise InvalidInput(field, value, f"give {forms}")
    return rate
