"""What `ofms reproduce method` compares: its policies, and the ingredients that are left out one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("air", "mnist", "cifar10", "digits")


@dataclass(frozen=True)
class Row:
    """A policy with some settings.

    Attributes
    ----------
    tuned
        Whether it fine-tunes: then a run on images takes hours, and one seed has to do.
    holds_all
        Whether clients have memory for the whole dictionary.
    """

    policy: str
    given: Mapping[str, Any] = field(default_factory=dict)
    tuned: bool = False
    holds_all: bool = False


METHOD = Row("late-hedge", {"fine_tuning_rate": 0})
TUNED = Row("late-hedge", tuned=True)
FROZEN_OFMS_FT = Row("ofms-ft", {"fine_tuning_rate": 0})

# Measured at each budget.
ROWS = {
    "OFMS-FT, as published": Row("ofms-ft", tuned=True),
    "OFMS-FT, frozen": FROZEN_OFMS_FT,
    "late hedging, frozen": METHOD,
    "late hedging, fine-tuned by use": Row("late-hedge", {"fine_tuned": "used"}, tuned=True),
    "late hedging, fine-tuned": TUNED,
}
# One line each, with frozen models; measured at each budget, too.
SIMPLE_ROWS = {
    "the best model of the first 50 labels": Row("explore-then-commit"),
    "follow the leader": Row("follow-the-leader"),
}
# In the main table, below those above.
FURTHER_ROWS = {"Fed-POE": Row("fed-poe", tuned=True), **SIMPLE_ROWS}
# Not possible within the memory, so never the best row.
LIMITS = {
    "all models held": Row("late-hedge", METHOD.given, holds_all=True),
}

# Changes of METHOD's settings.
ABLATION: dict[str, dict[str, Any]] = {
    "no offset": {"offset": False},
    "no late losses": {"late": False},
    "no hints": {"hints": False},
    "plain losses, no gradients": {"loss": "plain"},
    "AdaHedge's whole rate": {"rate": 1},
    "one memory": {"memories": [0]},
    "one model predicts": {"predict": "one"},
    "a visitor in every round": {"visit_every": 1},
    "nothing kept": {"keep": False},
    "always omission": {"outside": "omitted"},
    "always the draw": {"outside": "drawn"},
    "always the draw, nothing kept": {"outside": "drawn", "keep": False},
}

# Changes of TUNED's settings.
TUNED_ABLATION: dict[str, dict[str, Any]] = {
    "no fine-tuning": {"fine_tuning_rate": 0},
    "all models, by use": {"fine_tuned": "used"},
    "momentum instead of FedAdam": {"square_momentum": 0},
    "held like any other model": {"hold_global": False},
    "goes back if it became worse": {"control_every": 60},
}
