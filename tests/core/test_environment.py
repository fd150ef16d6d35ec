"""Numbers in environment variables."""

from __future__ import annotations

import pytest

from ofms.core.environment import seconds, whole_number
from ofms.core.errors import InvalidInput

NAME = "OFMS_TEST_NUMBER"


@pytest.mark.parametrize(("value", "expected"), [(None, 7), ("", 7), ("0", 0), ("12", 12)])
def test_whole_numbers(value: str | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if value is not None:
        monkeypatch.setenv(NAME, value)
    assert whole_number(NAME, 7) == expected


@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "²", "1 2", "٣"])
def test_other_words_are_no_whole_numbers(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(InvalidInput, match=rf"^{NAME} = {value}: give a whole number"):
        whole_number(NAME, 7)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, 2.5), ("", 2.5), ("0.5", 0.5), ("90", 90.0), ("999999999", 999999999.0)]
)
def test_seconds(value: str | None, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if value is not None:
        monkeypatch.setenv(NAME, value)
    assert seconds(NAME, 2.5) == expected


@pytest.mark.parametrize("value", ["abc", "0", "-1", "nan", "inf", "1e9", "1000000000.5"])
def test_other_words_are_no_seconds(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(InvalidInput, match=rf"^{NAME} = {value}: give a number of seconds above 0"):
        seconds(NAME, 2.5)
