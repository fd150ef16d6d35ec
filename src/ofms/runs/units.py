"""Parse budgets and bandwidths into bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.ledger import human_bytes
from ofms.core.typing import Integers

__all__ = ["human_bytes", "named_budgets", "parse_bandwidth", "parse_budgets", "parse_bytes", "parse_uplink"]

_FACTORS = {
    **{"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
_OTHERS = "*"
_MOST_DIGITS = 30
_AMOUNT = re.compile(r"(?P<number>[0-9]*\.?[0-9]+)\s*(?P<unit>[A-Za-z%]*)")
_BUDGET_FORMS = (
    "write '5' for five times the largest model, bytes as '64MiB', a list '3,5', shares '3:60%,5:40%', "
    "or by client 'NAME=3,*=5'"
)
_BANDWIDTH_FORMS = "write '50%' of the summed budgets, bytes as '1GiB', or '250' for that many of the largest model"


def parse_budgets(text: str, *, largest: int, clients: int, names: Sequence[str] = ()) -> Integers:
    """[N] the clients' budgets in bytes.

    A list has one budget per client; shares are spread evenly over the clients. With the clients' `names`, each may
    have its own, and `*` stands for all others.

    Examples
    --------
    >>> parse_budgets("5", largest=100, clients=3).tolist()
    [500, 500, 500]
    >>> parse_budgets("3:60%,5:40%", largest=100, clients=5).tolist()
    [300, 500, 300, 500, 300]
    >>> parse_budgets("pump=2,*=5", largest=100, clients=3, names=["fan", "pump", "valve"]).tolist()
    [500, 200, 500]
    """
    if clients < 1:
        raise InvalidInput("clients", clients, "give at least 1")
    parts = [part.strip() for part in str(text).split(",")]
    if any("=" in part for part in parts):
        return _by_name(str(text), parts, largest, names[:clients])
    if not any(":" in part for part in parts):
        amounts = [_bytes("budget", part, text, largest, _BUDGET_FORMS) for part in parts]
        if len(amounts) not in (1, clients):
            raise InvalidInput("budget", text, f"give one budget, one per client ({clients}), or shares")
        return np.array(amounts * (clients if len(amounts) == 1 else 1), dtype=np.int64)
    amounts, shares = [], []
    for part in parts:
        amount, colon, share = part.partition(":")
        match = _AMOUNT.fullmatch(share.strip())
        if not colon or match is None or match["unit"] != "%":
            raise InvalidInput("budget", text, _BUDGET_FORMS)
        amounts.append(_bytes("budget", amount, text, largest, _BUDGET_FORMS))
        shares.append(Fraction(match["number"]) / 100)
    if sum(shares) != 1:
        raise InvalidInput("budget", text, f"the shares add up to {float(100 * sum(shares)):g} %, not 100 %")
    given = [0] * len(shares)
    budgets = []
    for client in range(clients):
        behind = [share * (client + 1) - count for share, count in zip(shares, given, strict=True)]
        pick = behind.index(max(behind))
        given[pick] += 1
        budgets.append(amounts[pick])
    return np.array(budgets, dtype=np.int64)


def named_budgets(budgets: Mapping[str, object]) -> str:
    """Budgets by client as `parse_budgets` reads them.

    >>> named_budgets({"pump": 2, "*": "5"})
    'pump=2,*=5'
    """
    for name, amount in budgets.items():
        if "," in f"{name}{amount}":
            raise InvalidInput("budget", name, "names and budgets of clients must not contain commas")
    return ",".join(f"{name}={amount}" for name, amount in budgets.items())


def _by_name(text: str, parts: Sequence[str], largest: int, names: Sequence[str]) -> Integers:
    """[N] budgets given as NAME=BUDGET."""
    given: dict[str, int] = {}
    for part in parts:
        name, equals, amount = (each.strip() for each in part.rpartition("="))
        if not equals or name in given:
            raise InvalidInput("budget", text, "write NAME=BUDGET once for each client, and *=BUDGET for all others")
        if name != _OTHERS and name not in names:
            known = ", ".join(names[:12]) or "numbered, not named; write budgets in their order"
            raise InvalidInput("budget", text, f"there is no client {name!r}; clients are {known}")
        given[name] = _bytes("budget", amount, text, largest, _BUDGET_FORMS)
    missing = [name for name in names if name not in given]
    if missing and _OTHERS not in given:
        raise InvalidInput("budget", text, f"client {missing[0]!r} has none; add {_OTHERS}=BUDGET for all others")
    return np.array([given[name] if name in given else given[_OTHERS] for name in names], dtype=np.int64)


def parse_bandwidth(text: str, *, largest: int, budgets: Integers) -> int:
    """E in bytes.

    >>> parse_bandwidth("50%", largest=100, budgets=np.array([500, 500]))
    500
    """
    match = _AMOUNT.fullmatch(str(text).strip())
    if match is not None and match["unit"] == "%":
        total: int = sum(budgets.tolist())
        return math.floor(Fraction(match["number"]) / 100 * total)
    return _bytes("bandwidth", str(text), text, largest, _BANDWIDTH_FORMS)


def parse_bytes(field: str, text: str, *, largest: int) -> int:
    """One amount in bytes: `64MiB`, or `5` for five times the largest model.

    >>> parse_bytes("budget", "2KiB", largest=100), parse_bytes("budget", "3", largest=100)
    (2048, 300)
    """
    return _bytes(field, text, text, largest, "write bytes as '64MiB', or '5' for five times the largest model")


def parse_uplink(text: str) -> int:
    """Bytes per second.

    >>> parse_uplink("10MB/s"), parse_uplink("80 kB/s")
    (10000000, 80000)
    """
    amount, slash, second = text.strip().partition("/")
    match = _AMOUNT.fullmatch(amount.strip())
    if not slash or second.strip() != "s" or match is None or match["unit"] not in _FACTORS:
        raise InvalidInput("uplink", text, "write bytes per second, as '10MB/s'")
    return _bytes("uplink", amount, text, 1, "write bytes per second, as '10MB/s'")


def _bytes(field: str, part: str, whole: object, largest: int, forms: str) -> int:
    match = _AMOUNT.fullmatch(part.strip())
    if match is None or (match["unit"] and match["unit"] not in _FACTORS):
        raise InvalidInput(field, whole, forms)
    if len(match["number"]) > _MOST_DIGITS:
        raise InvalidInput(field, f"{match['number'][:_MOST_DIGITS]}…", f"the number is too long; {forms}")
    amount = math.floor(Fraction(match["number"]) * (_FACTORS[match["unit"]] if match["unit"] else largest))
    if amount >= 2**50:
        raise InvalidInput(field, whole, "it is more than 2⁵⁰ bytes; " + forms)
    return amount
