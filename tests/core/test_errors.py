"""Errors as one printable line."""

from __future__ import annotations

from ofms.core.errors import InvalidInput, one_line


def test_a_line_of_the_longest_length_is_whole() -> None:
    assert one_line("abcd", 4) == "abcd"
    assert one_line("abcde", 4) == "abc…"
    assert len(one_line("a" * 5000)) == 1000


def test_values_are_shortened() -> None:
    assert str(InvalidInput("x", "a" * 300, "give less")) == f"x = {'a' * 199}…: give less"
    assert str(InvalidInput("x", 10**5000, "give less")) == "x = a number of thousands of digits: give less"
