"""The sum of the devices' updates of each model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ofms.coordinator.validation import Answer, Tensors


@dataclass(frozen=True)
class Closed:
    """Of a closed exchange: the models that diverged, and those that go back to their first versions."""

    quarantined: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)


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
