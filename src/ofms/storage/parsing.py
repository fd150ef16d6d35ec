"""Parse TOML and JSON from any source: values, or a ValueError that says why not."""

from __future__ import annotations

import tomllib
from typing import Any, TypeVar

import msgspec

from ofms.storage.typed import from_json

T = TypeVar("T")


def parse_toml(content: bytes) -> dict[str, Any]:
    """The values of a TOML document, also after a byte order mark; ValueError if it is none.

    >>> parse_toml(b"\\xef\\xbb\\xbfa = 1")
    {'a': 1}
    >>> parse_toml(b"a = [")
    Traceback (most recent call last):
    ...
    ValueError: not valid TOML: Invalid value (at end of document)
    """
    try:
        values = tomllib.loads(content.decode("utf-8-sig"))
        _require_integers(values)
        return values
    except RecursionError:
        raise ValueError("not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # Also of numbers with thousands of digits, and of other encodings.
        raise ValueError(f"not valid TOML: {error}") from None


def _require_integers(value: Any) -> None:
    """Reject numbers of more than 64 bits, as TOML requires: those in hexadecimal may have any number of digits."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _require_integers(each)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number has more than 64 bits")


def parse_json(content: bytes, kind: type[T]) -> T:
    """The value of a JSON document as `kind`; ValueError if it is none.

    >>> parse_json(b'{"a": 1}', dict[str, int])
    {'a': 1}
    """
    try:
        return from_json(content, kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(str(error)) from None
