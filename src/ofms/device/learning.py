"""A device's learning from predictions and labels: functions of its models and memory, without locks or files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ofms.compute.losses import softmax, without_overflow
from ofms.core.errors import InvalidInput
from ofms.core.messages import Plan
from ofms.core.pooling import LARGEST, LEAST_PROBABILITY, Pooling, poolable
from ofms.core.schedule import past_window
from ofms.core.selection_loss import MOST_LOSS, selection_loss
from ofms.core.typing import AnyArray, Flags, Floats
from ofms.device.held_models import HeldModels, Sample
from ofms.device.membership import Membership
from ofms.device.memory import Memory, Waiting
from ofms.policies.local_updates import Adapted
from ofms.policies.observations import Samples

Label = float | int | np.integer[Any] | np.floating[Any]
_BATCH = 256
# A sum of squared errors stays finite.
_MOST_SCORE = 1e280


def answer(outputs: Mapping[int, AnyArray], plan: Plan, task: str, pooling: Pooling) -> float | int:
    """Combine the outputs of the predicting models: the mean value, or the class of the mean (log-)probabilities.

    The plan's offset is added to the mean.
    """
    prediction_weights, offset = plan.prediction_weights[0], None if plan.offset is None else plan.offset[0]
    if task == "regression":
        # Without models that overflow, where others predict too.
        sound = {model: output for model, output in outputs.items() if abs(float(output[0])) < LARGEST}
        if sound and len(sound) < len(outputs):
            prediction_weights = prediction_weights / sum(prediction_weights[model] for model in sound)
            outputs = sound
        elif not sound:
            return LARGEST
        value = sum(prediction_weights[model] * float(output[0]) for model, output in outputs.items())
        return float(value if offset is None else value + offset[0])
    if len(outputs) == 1 and offset is None:
        return int(next(iter(outputs.values())).argmax())
    mixable = poolable if pooling == "log" else softmax
    mixed = np.asarray(
        sum(prediction_weights[model] * mixable(output.astype(np.float64)) for model, output in outputs.items())
    )
    if offset is not None:
        mixed = (mixed if pooling == "log" else np.log(np.maximum(mixed, LEAST_PROBABILITY))) + offset
    return int(mixed.argmax())


def past_samples(membership: Membership, memory: Memory) -> list[Sample]:
    """The samples before this exchange to which an adapting policy adapts its models."""
    local = membership.policy.local
    if not isinstance(local, Adapted):
        return []
    first = membership.schedule.span(memory.exchange)[0]
    past = past_window(first, local.window) if first >= local.warm_up else None
    before = len(memory.samples) - (memory.labelled if memory.open else 0)
    return [] if past is None or before <= 0 else list(memory.samples)[:before][-past.weights.size :]


def observed_outputs(held_models: HeldModels, memory: Memory, waiting: Waiting) -> dict[int, AnyArray]:
    """Outputs of the observed models for an input; only models that did not predict are evaluated."""
    membership = held_models.membership
    observed = membership.policy.observed(memory.plans[waiting.exchange])
    past = past_samples(membership, memory)
    outputs = {}
    for model in np.flatnonzero(observed[0]).tolist():
        output = waiting.outputs.get(model)
        outputs[model] = held_models.outputs(model, waiting.x[None], past)[0] if output is None else output
    return outputs


def read_label(task: str, outputs: Mapping[int, AnyArray], y: Label) -> float | int:
    """Convert a label to the task's type, or reject it; `outputs` give the number of classes."""
    if not np.isfinite(y):
        raise InvalidInput("label", y, "give a finite number")
    if task == "regression":
        return float(y)
    classes = len(next(iter(outputs.values())))
    if y != int(y) or not 0 <= y < classes:
        raise InvalidInput("label", y, f"give a class from 0 to {classes - 1}")
    return int(y)


def losses_of(membership: Membership, outputs: Mapping[int, AnyArray], y: float | int) -> Floats:
    """[1, K] selection losses of the observed models, NaN for others; rejects a label whose loss is not finite."""
    if membership.task == "regression" and membership.policy.loss_bound == "raw" and y * y > MOST_LOSS:
        raise InvalidInput("label", y, "its squared error is not finite; the label is ignored")
    losses = np.full((1, 1, len(membership.catalogue)), np.nan)
    target = membership.targets([y])
    for model, output in outputs.items():
        loss = membership.compute.losses(output[None], target)
        losses[0, 0, model] = without_overflow(loss, output[None], target, membership.task)[0]
    return selection_loss(losses, membership.policy.loss_bound)[:, 0]


def score_of(membership: Membership, plan: Plan, outputs: Mapping[int, AnyArray], y: float | int) -> float:
    """The score of the prediction for an input, once its label is known: whether the class is right, or the squared
    error."""
    predicting = {model: outputs[model] for model in np.flatnonzero(plan.prediction_weights[0]).tolist()}
    value = answer(predicting, plan, membership.task, membership.policy.pooling)
    if membership.task == "classification":
        return float(value == y)
    error = value - y
    return min(error * error, _MOST_SCORE)


def learn(
    membership: Membership, memory: Memory, id: int, y: float | int, outputs: Mapping[int, AnyArray], losses: Floats
) -> None:
    """Learn from a label, in the open exchange or late, and keep its sample."""
    waiting = memory.waiting.pop(id)
    plan, policy = memory.plans[waiting.exchange], membership.policy
    memory.samples.append((waiting.x, y))
    memory.sampled += 1
    memory.scored += 1
    memory.score += score_of(membership, plan, outputs, y)
    if policy.remembers:
        sample = _sample(len(membership.catalogue), waiting.exchange, outputs, y)
        memory.state = membership.session.remember(memory.state, plan, sample)
    if memory.open and waiting.exchange == memory.exchange:
        memory.losses += np.where(policy.observed(plan)[0], losses[0], 0.0)
        memory.labelled += 1
    else:
        # Late label: learn with the probabilities recorded at prediction, unless its models were retired since.
        if membership.slots.narrow(plan.prediction_weights).any():
            memory.state, _ = membership.session.learn(memory.state, plan, losses)
        memory.before = None
    longest = membership.schedule.interval + max(policy.local.window if policy.local else 0, policy.remembers)
    while len(memory.samples) > longest:
        memory.samples.popleft()
    memory.forget_plans()


def _sample(models: int, exchange: int, outputs: Mapping[int, AnyArray], y: float | int) -> Samples:
    """One labelled sample, with the outputs of the observed models."""
    known = np.full((1, 1, models, len(next(iter(outputs.values())))), np.nan, dtype=np.float32)
    for model, output in outputs.items():
        known[0, 0, model] = output
    return Samples.of(exchange, known, np.array([[y]]))


def late_outputs(held_models: HeldModels, unknown: Flags, samples: Sequence[Sample]) -> AnyArray | None:
    """[1, R, K, C] outputs on the last R samples, as far as [R, K] `unknown`; None if nothing is."""
    found: AnyArray | None = None
    last = samples[len(samples) - unknown.shape[0] :]
    for place, model in np.argwhere(unknown).tolist():
        # One by one, as predictions are: the result of a batch differs in the last bits.
        output = held_models.outputs(model, last[place][0][None])[0]
        if found is None:
            found = np.full((1, *unknown.shape, output.size), np.nan, dtype=np.float32)
        found[0, place, model] = output
    return found


def keep_outputs(held_models: HeldModels, memory: Memory, models: Iterable[int]) -> None:
    """Compute outputs for waiting inputs before models are removed or replaced."""
    past = past_samples(held_models.membership, memory)
    observed = {exchange: held_models.membership.policy.observed(plan)[0] for exchange, plan in memory.plans.items()}
    for model in models:
        lacking = [
            waiting
            for waiting in memory.waiting.values()
            if model not in waiting.outputs and observed[waiting.exchange][model]
        ]
        for first in range(0, len(lacking), _BATCH):
            some = lacking[first : first + _BATCH]
            outputs = held_models.outputs(model, np.stack([waiting.x for waiting in some]), past)
            for waiting, output in zip(some, outputs, strict=True):
                waiting.outputs[model] = output.copy()
