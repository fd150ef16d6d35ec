"""Numbers in environment variables."""

from __future__ import annotations

import os

from ofms.core.errors import InvalidInput


def whole_number(name: str, default: int) -> int:
    """The value of an environment variable; rejected if it is not a whole number of at least 0."""
    value = os.environ.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit()):
        raise InvalidInput(name, value, "give a whole number, as torchrun does, or unset it")
    return int(value)


def seconds(name: str, default: float) -> float:
    """The value of an environment variable; rejected unless it is a number above 0."""
    value = os.environ.get(name, "")
    try:
        found = float(value) if value else default
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise InvalidInput(name, value, "give a number of seconds above 0, or unset it")
    return found
