"""Errors: invalid input, and values that are not finite."""

from __future__ import annotations


class InvalidInput(ValueError):
    """Invalid input; the message names the field, the value and the remedy.

    >>> raise InvalidInput("rounds", 0, "give at least 1")
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: rounds = 0: give at least 1
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} = {value}: {remedy}")


class NotFinite(ArithmeticError):
    """A loss in pre-training that is not finite."""
