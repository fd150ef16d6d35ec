"""The sum of the devices' updates of each model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ofms.coordinator.validation import Answer, Tensors


@dataclass(frozen=True)
class Closed:
    """Of a closed exchange: the models that diverged, those that go back to their first versions, and late answers.

    `late` has device and exchange of each late answer that counted; `overdue` the devices whose answers to an earlier
    exchange will not count any more.
    """

    quarantined: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)
    overdue: list[int] = field(default_factory=list)
    updates: int = 0


def sum_updates(answers: Sequence[Answer]) -> dict[int, Tensors]:
    """The weighted updates of each model, summed in the order of the answers; by model."""
    summed: dict[int, Tensors] = {}
    for answer in answers:
        for model, update in answer.updates.items():
            total = summed.setdefault(model, {})
            for name, delta in update.delta.items():
                part = update.weight * delta
                total[name] = total[name] + part if name in total else part
    return dict(sorted(summed.items()))
