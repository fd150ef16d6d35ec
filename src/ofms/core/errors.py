"""Errors: invalid input, and values that are not finite."""

from __future__ import annotations

_LONGEST_VALUE, _LONGEST_LINE = 200, 1000


def one_line(text: str, longest: int = _LONGEST_LINE) -> str:
    """Text from any source as one printable line: no control characters, which a terminal would obey.

    >>> one_line("a\\n\\tb \\x1b[2J"), one_line("abcdef", 4)
    ('a b [2J', 'abc…')
    """
    shown = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _shown(value: object) -> str:
    try:
        return one_line(str(value), _LONGEST_VALUE)
    except ValueError:  # Python converts no number of more than 4,300 digits.
        return "a number of thousands of digits"


class InvalidInput(ValueError):
    """Invalid input; the message names the field, the value and the remedy, in one line.

    >>> raise InvalidInput("rounds", 0, "give at least 1")
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: rounds = 0: give at least 1
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(one_line(f"{field} = {_shown(value)}: {remedy}"))


class NotFinite(ArithmeticError):
    """A loss in pre-training that is not finite."""


class ProcessEnded(Exception):
    """A process that should have kept running ended."""


class PeerEnded(ProcessEnded):
    """Another process of the same run ended."""
