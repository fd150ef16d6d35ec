"""The devices' updates of each model as one: their sum, or a robust total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ofms.compute.flattening import combine_tensors
from ofms.compute.updates import norm_of
from ofms.coordinator.validation import Answer, Tensors
from ofms.core.messages import Reports
from ofms.core.robust import Aggregation, clip_factors, norms, scaled_losses, total
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.core.usual_norms import UsualNorms

# Times the median norm of a model's updates in an exchange.
_OUTLIER = 10.0


@dataclass(frozen=True)
class Closed:
    """Of a closed exchange: the models that diverged, those that go back to their first versions, and late answers.

    `late` has device and exchange of each late answer that counted; `overdue` the devices whose answers to an earlier
    exchange will not count any more.
    """

    quarantined: list[int] = field(default_factory=list)
    # By model, the devices that say that their update of it is not finite.
    left_out: dict[int, list[int]] = field(default_factory=dict)
    restored: list[int] = field(default_factory=list)
    # By device, its updates that are far longer than the others'.
    outliers: dict[int, int] = field(default_factory=dict)
    late: list[tuple[int, int]] = field(default_factory=list)
    overdue: list[int] = field(default_factory=list)
    updates: int = 0


def left_out(reports: Reports) -> dict[int, list[int]]:
    """By model, the devices that left their update out because it is not finite."""
    found: dict[int, list[int]] = {}
    for place, model in [] if reports.left_out is None else np.argwhere(reports.left_out).tolist():
        found.setdefault(model, []).append(int(reports.client[place]))
    return found


def outliers(answers: Sequence[Answer]) -> dict[int, int]:
    """By device, how many of its weighted updates are far longer than the median of their model's.

    Of fewer than three updates, none is.
    """
    lengths: dict[int, list[tuple[int, float]]] = {}
    for answer in answers:
        for model, update in answer.updates.items():
            length = update.weight * norm_of(update.delta.values())
            lengths.setdefault(model, []).append((int(answer.reports.client[0]), length))
    found: dict[int, int] = {}
    for each in lengths.values():
        usual = float(np.median([length for _, length in each]))
        for client, length in each if len(each) > 2 else ():
            if length > _OUTLIER * usual:
                found[client] = found.get(client, 0) + 1
    return found


def aggregate(
    answers: Sequence[Answer], reports: Reports, aggregation: Aggregation, usual: UsualNorms
) -> tuple[dict[int, Tensors], Reports]:
    """One update of each model, from its weighted updates in the order of the answers, and the reports for it.

    Robustly, updates are shortened, and with them the losses that they reduce; their norms are added to `usual`. That
    needs all updates of a model at once: as much memory again as these take. Together, those of an exchange are no
    larger than its bandwidth.
    """
    if not aggregation.robust:
        return sum_updates(answers), reports
    # By place among the answers: a device may have two, of which one is late.
    weighted: dict[int, dict[int, Tensors]] = {}
    for place, answer in enumerate(answers):
        for model, update in answer.updates.items():
            own = {name: update.weight * delta for name, delta in update.delta.items()}
            weighted.setdefault(model, {})[place] = own
    factors: dict[int, tuple[Integers, Floats]] = {}

    def combine(model: int, rows: AnyArray) -> AnyArray:
        lengths = norms(rows)
        shorter = clip_factors(lengths, aggregation, usual.add(model, lengths))
        factors[model] = np.array(list(weighted[model])), shorter
        return total(rows, aggregation, shorter)

    updates = {
        model: combine_tensors(list(each.values()), partial(combine, model)) for model, each in sorted(weighted.items())
    }
    if reports.losses is not None:
        reports = replace(reports, losses=scaled_losses(reports.losses, np.arange(len(answers)), factors))
    return updates, reports


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
