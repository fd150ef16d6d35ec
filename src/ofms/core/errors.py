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
    """A loss or an update of a client that is not finite; it was not used for learning."""

    def __init__(self, message: str, client: int | None = None) -> None:
        super().__init__(message)
        self.client = client

    def with_name(self, name: str) -> NotFinite:
        """The error with the client's name instead of its number.

        >>> str(NotFinite("the loss of client 3 is inf", 3).with_name("pump"))
        'the loss of client pump is inf'
        """
        return NotFinite(str(self).replace(f"client {self.client}", f"client {name}", 1), self.client)
