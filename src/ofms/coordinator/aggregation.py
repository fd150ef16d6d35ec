"""The devices' updates of each model as one: their sum, or a robust total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ofms.compute.flattening import combine_tensors
from ofms.coordinator.validation import Answer, Tensors
from ofms.core.robust import Aggregation, norms, total
from ofms.core.typing import AnyArray
from ofms.core.usual_norms import UsualNorms


@dataclass(frozen=True)
class Closed:
    """Of a closed exchange: the models that diverged, and those that go back to their first versions."""

    quarantined: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)


def aggregate(answers: Sequence[Answer], aggregation: Aggregation, usual: UsualNorms) -> dict[int, Tensors]:
    """One update of each model, from its weighted updates in the order of the answers.

    Their norms are added to `usual`. A robust one needs all updates of a model at once: as much memory again as these
    take. Together, those of an exchange are no larger than its bandwidth.
    """
    if not aggregation.robust:
        return sum_updates(answers)
    weighted: dict[int, list[Tensors]] = {}
    for answer in answers:
        for model, update in answer.updates.items():
            own = {name: update.weight * delta for name, delta in update.delta.items()}
            weighted.setdefault(model, []).append(own)

    def combine(model: int, rows: AnyArray) -> AnyArray:
        return total(rows, aggregation, usual.add(model, norms(rows)))

    return {model: combine_tensors(updates, partial(combine, model)) for model, updates in sorted(weighted.items())}


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
