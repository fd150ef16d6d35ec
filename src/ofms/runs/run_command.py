"""`ofms run` as a command line that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ofms.storage.parsing import parse_toml

# Fields of a run that have an option of their own; all others are given by --set.
_OPTIONS = ("seed", "preset", "budget", "bandwidth", "clients", "rounds", "drift", "device")


def run_command(
    experiment: str,
    given: Mapping[str, Any],
    *,
    policy: str | None = None,
    models: str | None = None,
    trust: Iterable[str] = (),
    loopback: bool = False,
) -> str:
    """The command that runs an experiment with the caller's fields and settings, quoted for a shell.

    >>> run_command("air", {"rounds": 20, "learning_rate": "10/sqrt(T)"}, policy="ofms-ft", trust=["pumps"])
    "ofms run air --policy ofms-ft --rounds 20 --set 'learning_rate=10/sqrt(T)' --trust pumps"
    """
    parts = ["ofms", "run", experiment, *(["--policy", policy] if policy else [])]
    for name, value in given.items():
        parts += [f"--{name}", str(value)] if name in _OPTIONS else ["--set", f"{name}={_argument(value)}"]
    parts += ["--models", models] if models else []
    parts += [part for package in trust for part in ("--trust", package)]
    return shlex.join([*parts, "--loopback"] if loopback else parts)


def _argument(value: object) -> str:
    """A value as --set reads it: TOML, or text that is no TOML.

    >>> _argument("10/sqrt(T)"), _argument("3"), _argument(3)
    ('10/sqrt(T)', '"3"', '3')
    """
    if isinstance(value, str):
        try:
            parse_toml(f"value = {value}".encode())
        except ValueError:
            return value
    return _toml(value)


def _toml(value: object) -> str:
    """A value as TOML in one line.

    >>> _toml([{"round": 5, "retire": ["net3"], "doubling": True}])
    '[{"round" = 5, "retire" = ["net3"], "doubling" = true}]'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if value is None:
        return '"none"'
    # JSON has no infinite numbers; its other plain values are TOML as well.
    return str(value) if isinstance(value, float) else msgspec.json.encode(value).decode()
