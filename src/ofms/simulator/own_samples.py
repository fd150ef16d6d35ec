"""Computation for clients that joined during the run: they adapt and fine-tune on samples that they saw themselves."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from ofms.compute.own_copies import OwnCopies
from ofms.compute.protocol import Adaptation, Combine, Compute, Evaluation, Pending, ShardUpdates, Summed
from ofms.compute.updates import add_updates
from ofms.core.messages import Plan
from ofms.core.schedule import Window
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.local_updates import LocalUpdate


def own_windows(window: Window, first_rounds: Integers | None) -> list[tuple[Flags | None, Window]]:
    """The part of a window that clients saw, with the [N] clients of each part; None for all clients."""
    if first_rounds is None or (first_rounds <= window.first).all():
        return [(None, window)]
    start = np.maximum(window.first, first_rounds)
    return [
        (start == each, Window(each, window.weights[each - window.first :]))
        for each in np.unique(start).tolist()
        if each < window.stop
    ]


def evaluate(
    compute: Compute,
    first_rounds: Integers | None,
    span: tuple[int, int],
    held: Flags,
    prediction_weights: Floats,
    *,
    adaptation: Adaptation | None,
    **given: Any,
) -> Pending[Evaluation]:
    """`Compute.evaluate`, in which clients adapt to their own past samples."""
    parts = [] if adaptation is None else own_windows(adaptation.window, first_rounds)
    some: list[tuple[Flags, Adaptation | None]] = [
        (rows, replace(adaptation, window=window))
        for rows, window in parts
        if rows is not None and adaptation is not None
    ]
    if not some:
        # Without any part, all of them just joined.
        shared = adaptation if parts else None
        return compute.evaluate(span, held, prediction_weights, adaptation=shared, **given)
    # Those who just joined have nothing to adapt to.
    some.append((~np.any([rows for rows, _ in some], axis=0), None))
    pending = [
        (
            rows,
            compute.evaluate(
                span,
                held & rows[:, None],
                prediction_weights * rows[:, None],
                adaptation=own,
                **given,
            ),
        )
        for rows, own in some
        if rows.any()
    ]
    return Pending(lambda: _joined([(rows, each.result()) for rows, each in pending]))


def update(
    numbers: range, compute: Compute, first_rounds: Integers | None, window: Window, plan: Plan, local: LocalUpdate
) -> Pending[ShardUpdates]:
    """`Compute.update` of the shards `numbers`, in which clients fine-tune on their own samples."""
    parts = _parts(first_rounds, window, plan)
    pending = [compute.update(own, weights, local, plan.prediction_weights, plan.offset) for own, weights in parts]
    return pending[0] if len(pending) == 1 else Pending(lambda: _summed([each.result() for each in pending], numbers))


def combine(
    compute: Compute,
    first_rounds: Integers | None,
    window: Window,
    plan: Plan,
    local: LocalUpdate,
    combination: Combine,
) -> Pending[Summed]:
    """`Compute.combine`, in which clients fine-tune on their own samples."""
    parts = _parts(first_rounds, window, plan)
    return compute.combine(parts, local, plan.prediction_weights, combination, plan.offset)


def _parts(first_rounds: Integers | None, window: Window, plan: Plan) -> list[tuple[Window, Floats]]:
    """Windows, each with the weights of the clients that saw it."""
    parts = []
    for rows, own in own_windows(window, first_rounds):
        weights = plan.update_weight if rows is None else plan.update_weight * rows[:, None]
        if rows is None or weights.any():
            parts.append((own, weights))
    return parts


def train(
    copies: OwnCopies, first_rounds: Integers | None, window: Window, held: Flags, local: LocalUpdate
) -> list[tuple[int, int]]:
    """`OwnCopies.train`, in which clients fine-tune on their own samples."""
    left_out = []
    for rows, own in own_windows(window, first_rounds):
        some = held if rows is None else held & rows
        if some.any():
            left_out += copies.train(own, some, local)
    return left_out


def _joined(parts: list[tuple[Flags, Evaluation]]) -> Evaluation:
    """The rows of each part."""
    made = {}
    for each in fields(Evaluation):
        whole = getattr(parts[0][1], each.name)
        if whole is not None:
            whole = whole.copy()
            for rows, part in parts[1:]:
                whole[rows] = getattr(part, each.name)[rows]
        made[each.name] = whole
    return Evaluation(**made)


def _summed(parts: list[ShardUpdates], numbers: range) -> ShardUpdates:
    """The sums of updates by shard and model."""
    summed: dict[int, Any] = {shard: {} for shard in numbers}
    for part in parts:
        for shard, updates in part.shards.items():
            add_updates(summed[shard], updates)
    return ShardUpdates(summed, [pair for part in parts for pair in part.left_out])
