"""What a restored device relies on: a snapshot or a journal that does not have it is rejected."""

from __future__ import annotations

import math

import numpy as np

from ofms.core.messages import Plan
from ofms.core.typing import AnyArray
from ofms.device.journal_records import Predicted
from ofms.device.membership import Membership
from ofms.device.memory import Memory
from ofms.policies.protocol import ClientPolicy

_MOST_ID = 2**62


def require_memory(memory: Memory, membership: Membership) -> None:
    """ValueError if parts of a memory do not fit each other, or the models of a membership."""
    models = len(membership.catalogue)
    if memory.losses.shape != (models,) or not np.isfinite(memory.losses).all():
        raise ValueError("losses")
    if memory.plans.keys() - {memory.exchange} - {each.exchange for each in memory.waiting.values()}:
        raise ValueError("plans of other exchanges")
    needed = {each.exchange for each in memory.waiting.values()} | (
        {memory.exchange} if memory.exchange >= 0 else set()
    )
    if needed - memory.plans.keys() or (memory.open and memory.exchange < 0):
        raise ValueError("a plan is missing")
    for plan in memory.plans.values():
        _require_plan(plan, models, membership.policy)
    if memory.exchange >= 0 and set(np.flatnonzero(memory.plans[memory.exchange].held[0])) - memory.versions.keys():
        raise ValueError("a model is planned but not held")
    counts = (memory.labelled, memory.sampled - len(memory.samples), memory.dropped, memory.next_id)
    if min(counts) < 0 or memory.next_id > _MOST_ID or memory.requested_exchange < -1:
        raise ValueError("a count is negative")
    if any(not 0 <= model < models or version < 0 for model, version in memory.versions.items()):
        raise ValueError("versions")
    for number, waiting in memory.waiting.items():
        if not 0 <= number < memory.next_id or not math.isfinite(waiting.since):
            raise ValueError(f"input {number}")
        _require_input(waiting.x, memory)
        if any(output.ndim != 1 or not 0 <= model < models for model, output in waiting.outputs.items()):
            raise ValueError(f"outputs of input {number}")
    for x, y in memory.samples:
        _require_input(x, memory)
        if isinstance(y, bool) or not isinstance(y, int | float) or not math.isfinite(y):
            raise ValueError("a label is not a number")


def require_prediction(record: Predicted, memory: Memory) -> None:
    """ValueError if a prediction of a journal does not follow what was before."""
    if record.id != memory.next_id or not math.isfinite(record.since) or memory.exchange < 0:
        raise ValueError(f"prediction {record.id}")
    _require_input(record.x, memory)


def _require_input(x: AnyArray, memory: Memory) -> None:
    known = memory.shape is None or x.shape == memory.shape
    if x.dtype != np.float32 or not x.ndim or not known or not np.isfinite(x).all():
        raise ValueError("an input has another shape, or is not finite")


def _require_plan(plan: Plan, models: int, policy: ClientPolicy) -> None:
    offset = plan.offset
    if offset is not None and (offset.ndim != 2 or offset.dtype.kind != "f" or not np.isfinite(offset).all()):
        raise ValueError("plan offset")
    for name in Plan.by_model:
        array = getattr(plan, name)
        if array.shape != (1, models) or array.dtype.kind != ("b" if name == "held" else "f"):
            raise ValueError(f"plan {name}")
        if not np.isfinite(array).all() or (array < 0).any():
            raise ValueError(f"plan {name}")
    if not plan.prediction_weights.any() or (plan.prediction_weights[~plan.held] > 0).any():
        raise ValueError("plan prediction_weights")
    # Estimates of losses divide by it.
    drawn = plan.held if policy.observes == "held" and not policy.remembers else plan.prediction_weights > 0
    if not plan.inclusion[drawn].all():
        raise ValueError("plan inclusion")
