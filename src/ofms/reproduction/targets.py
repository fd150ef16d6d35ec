"""Targets of a reproduction by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable

from ofms.reproduction.attacks import attacks
from ofms.reproduction.bench import Bench, Section
from ofms.reproduction.beyond import digits, exchange_interval, gain, server, uplink
from ofms.reproduction.choices import choices
from ofms.reproduction.comparison import comparison
from ofms.reproduction.drift import drift
from ofms.reproduction.method import method
from ofms.reproduction.published import budgets, mixed_budgets, regret, run_time

TARGETS: dict[str, Callable[[Bench], Section]] = {
    "comparison": comparison,
    "budgets": budgets,
    "mixed-budgets": mixed_budgets,
    "run-time": run_time,
    "regret": regret,
    "digits": digits,
    "gain": gain,
    "interval": exchange_interval,
    "bandwidth": uplink,
    "server": server,
    "choices": choices,
    "method": method,
    "drift": drift,
    "attacks": attacks,
}
