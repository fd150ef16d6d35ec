"""What predictions and labels do to a device: a held_models of models and a memory, without locks and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from ofms.compute.tasks import sample_losses
from ofms.core.errors import InvalidInput
from ofms.core.schedule import past_window
from ofms.core.selection_loss import selection_loss
from ofms.core.typing import AnyArray, Floats
from ofms.device.held_models import HeldModels, Sample
from ofms.device.membership import Membership
from ofms.device.memory import Memory, Waiting
from ofms.policies.local_updates import Adapted

_BATCH = 256


def answer(outputs: Mapping[int, AnyArray], prediction_weights: Floats, task: str) -> float | int:
    """What the predicting models say together: the mean value, or the class of the mean probabilities."""
    if task == "regression":
        return float(sum(prediction_weights[model] * float(output[0]) for model, output in outputs.items()))
    if len(outputs) == 1:
        return int(next(iter(outputs.values())).argmax())
    mixed = sum(
        prediction_weights[model] * torch.from_numpy(output).softmax(0).numpy() for model, output in outputs.items()
    )
    return int(np.asarray(mixed).argmax())


def past_samples(membership: Membership, memory: Memory) -> list[Sample]:
    """What a policy that adapts its models adapts them to: the samples before this exchange."""
    local = membership.policy.local
    if not isinstance(local, Adapted):
        return []
    first = membership.fleet.schedule.span(memory.exchange)[0]
    past = past_window(first, local.window) if first >= local.warm_up else None
    before = len(memory.samples) - (memory.labelled if memory.open else 0)
    return [] if past is None or before <= 0 else list(memory.samples)[:before][-past.weights.size :]


def read_label(held_models: HeldModels, waiting: Waiting, y: float | int) -> float | int:
    """A label as the task has it, or a refusal."""
    if not np.isfinite(y):
        raise InvalidInput("label", y, "give a finite number")
    if held_models.membership.task == "regression":
        return float(y)
    outputs = list(waiting.outputs.values()) or [held_models.outputs(next(iter(held_models)), waiting.x[None])[0]]
    if y != int(y) or not 0 <= y < len(outputs[0]):
        raise InvalidInput("label", y, f"give a class from 0 to {len(outputs[0]) - 1}")
    return int(y)


def losses_of(held_models: HeldModels, memory: Memory, waiting: Waiting, y: float | int) -> Floats:
    """[1, K] selection losses of the models that a label is for, as when its input came; all finite, or a refusal."""
    membership = held_models.membership
    observed = membership.policy.observed(memory.plans[waiting.exchange])
    past = past_samples(membership, memory)
    losses = np.full((1, 1, len(membership.fleet.catalogue)), np.nan)
    target = torch.tensor([y], dtype=torch.int64 if membership.task == "classification" else torch.float32)
    for model in np.flatnonzero(observed[0]).tolist():
        output = waiting.outputs.get(model)
        if output is None:
            output = held_models.outputs(model, waiting.x[None], past)[0]
        losses[0, 0, model] = float(sample_losses(torch.from_numpy(output)[None], target, membership.task)[0])
    bounded = np.where(observed, selection_loss(losses, membership.policy.loss_bound)[:, 0], np.nan)
    if not np.isfinite(bounded[observed]).all():
        model = int(np.flatnonzero(observed[0] & ~np.isfinite(bounded[0]))[0])
        raise InvalidInput("label", y, f"the loss of model {model} is not finite with it; nothing is learnt")
    return bounded


def learn(membership: Membership, memory: Memory, id: int, y: float | int, losses: Floats) -> None:
    """Take a label in: into the open exchange, or late, and among the samples to fine-tune on."""
    waiting = memory.waiting.pop(id)
    plan = memory.plans[waiting.exchange]
    if memory.open and waiting.exchange == memory.exchange:
        memory.losses += np.where(membership.policy.observed(plan)[0], losses[0], 0.0)
        memory.labelled += 1
    else:
        # Late: what the exchange had known is learnt now, with the probabilities of then.
        memory.state, _ = membership.session.learn(memory.state, plan, losses)
    memory.samples.append((waiting.x, y))
    longest = membership.fleet.schedule.interval + (membership.policy.local.window if membership.policy.local else 0)
    while len(memory.samples) > longest:
        memory.samples.popleft()
    memory.forget_plans()


def keep_outputs(held_models: HeldModels, memory: Memory, models: Iterable[int]) -> None:
    """Before models go or are replaced: their outputs for the inputs that still wait for labels."""
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
