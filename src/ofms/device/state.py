"""A device's models and memory, and how messages, predictions and labels change them; no locks, no files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from ofms.compute.client import Arrays
from ofms.core.errors import InvalidInput
from ofms.core.messages import Plan
from ofms.core.typing import AnyArray, Floats
from ofms.device.exchange_messages import Granted, write_request
from ofms.device.held_models import HeldModels
from ofms.device.learning import answer, keep_outputs, past_samples
from ofms.device.membership import Membership
from ofms.device.memory import Memory, Waiting
from ofms.device.report_tasks import LateTask, TuningTask
from ofms.policies.changes import padded
from ofms.policies.local_updates import is_control, tunes_pool
from ofms.policies.observations import Samples
from ofms.storage.envelope import message_arrays

Reveals = Literal["nothing", "score", "use"]


class DeviceState:
    """The models held (None before a welcome) and the memory."""

    def __init__(self, memory: Memory | None = None, held_models: HeldModels | None = None) -> None:
        self.memory = Memory() if memory is None else memory
        self.held_models = held_models
        self.reveals: Reveals | None = None
        self._predicting: tuple[int, list[int]] | None = None

    @property
    def ready(self) -> bool:
        """Whether a grant has arrived."""
        return bool(self.memory.plans)

    @property
    def is_exchange_complete(self) -> bool:
        """Whether all labels of the open exchange have arrived."""
        held_models, memory = self.held_models, self.memory
        return (
            held_models is not None
            and memory.open
            and memory.labelled >= held_models.membership.samples_in(memory.exchange)
        )

    def predict(self, held_models: HeldModels, x: AnyArray) -> tuple[float | int, dict[int, AnyArray]]:
        """The prediction for an input, and the outputs of the models that made it."""
        memory = self.memory
        plan = memory.plans[memory.exchange]
        if self._predicting is None or self._predicting[0] != memory.exchange:
            self._predicting = (memory.exchange, np.flatnonzero(plan.prediction_weights[0]).tolist())
        if memory.shape is not None and x.shape != memory.shape:
            # A convolution may accept it, but samples of different shapes cannot be batched.
            raise InvalidInput("input", list(x.shape), f"earlier inputs were {list(memory.shape)}; give the same shape")
        past = past_samples(held_models.membership, memory)
        outputs = {model: held_models.outputs(model, x[None], past)[0] for model in self._predicting[1]}
        membership = held_models.membership
        return answer(outputs, plan, membership.task, membership.policy.pooling), outputs

    def add_waiting(self, number: int, waiting: Waiting, *, most: int, longest: float) -> None:
        """Store an input until its label arrives; drop the oldest beyond `most`, or `longest` seconds older than it."""
        memory = self.memory
        memory.next_id, memory.shape = number + 1, waiting.x.shape
        memory.waiting[number] = waiting
        while memory.waiting:
            oldest = next(iter(memory.waiting.values()))
            if len(memory.waiting) <= most and waiting.since - oldest.since <= longest:
                break
            memory.waiting.popitem(last=False)
            memory.dropped += 1

    def join(self, membership: Membership, exchange: int) -> None:
        """Join a fleet with a fresh state, and request an exchange."""
        before, held_models = self.memory, HeldModels(membership)
        memory = Memory(
            state=membership.join(),
            losses=np.zeros(len(membership.catalogue)),
            next_id=before.next_id,
            dropped=before.dropped + len(before.waiting),
            program=before.program,
        )
        write_request(held_models, memory, exchange)
        # Only now: a policy that cannot request anything leaves the device as it was.
        self.held_models, self.memory, self._predicting = held_models, memory, None

    def change(self, membership: Membership, exchange: int) -> None:
        """Request an exchange of a fleet that changed: with what was learnt, or anew if its policy starts anew."""
        held_models, memory = self.held_models, self.memory
        assert held_models is not None
        before = held_models.membership
        if memory.open and memory.labelled:
            plan = memory.plans[memory.exchange]
            memory.state, _ = before.session.learn(memory.state, plan, self._observed(before, plan))
        elif not memory.open and memory.before is not None:
            memory.state = replace(memory.state, policy=memory.before.policy)
        memory.open, catalogue, anew = False, membership.catalogue, membership.anew > before.changed
        budgets = np.array([membership.budget], dtype=np.int64)
        renewed = [slot for slot, number in membership.renewed.items() if number > before.changed]
        memory.state = membership.session.adapt(
            memory.state, before.session, catalogue, budgets, anew=anew, renewed=renewed
        )
        memory.plans = {
            number: plan.for_models(partial(padded, count=len(catalogue), axis=1, fill=0))
            for number, plan in memory.plans.items()
        }
        memory.losses = np.zeros(len(catalogue))
        if anew:
            memory.dropped += len(memory.waiting)
            memory.waiting.clear()
            memory.own = {}
        self.held_models, self._predicting = HeldModels(membership, held_models.tensors), None
        write_request(self.held_models, memory, exchange, anew=self._go_back(exchange))

    def rejoin(self, held_models: HeldModels, exchange: int) -> None:
        """Request an exchange after having missed some; keep the learnt state."""
        self.held_models, memory, membership = held_models, self.memory, held_models.membership
        if memory.open and memory.labelled:
            plan = memory.plans[memory.exchange]
            memory.state, _ = membership.session.learn(memory.state, plan, self._observed(membership, plan))
        memory.open = False
        write_request(held_models, memory, exchange, anew=self._go_back(exchange))

    def _go_back(self, exchange: int) -> bool:
        """Follow a server that went back to an exchange: the one whose models are held must precede it."""
        memory = self.memory
        if memory.exchange < exchange:
            return False
        memory.dropped += len(memory.waiting)
        memory.waiting.clear()
        memory.plans = {exchange - 1: memory.plans[memory.exchange]}
        memory.exchange = exchange - 1
        self._predicting = None
        return True

    def apply(self, granted: Granted, held_models: HeldModels) -> None:
        """Swap models and begin the exchange, or continue it if it was open under another grant."""
        memory, grants, versions, sent = self.memory, granted.grants, granted.versions, granted.sent
        open_plan = memory.plans[memory.exchange] if memory.open and memory.exchange == grants.exchange else None
        keep_outputs(held_models, memory, [model for model in held_models if model not in versions or model in sent])
        memory.state, plan = held_models.membership.session.plan(memory.state, grants)
        for model in set(held_models) - versions.keys():
            held_models.remove(model)
        for model, each in sent.items():
            # One by one: earlier models, the message and copies of all would be in memory together.
            held_models.put_copy(model, each.tensors)
        own = held_models.membership.policy.own_model
        if own in sent or own not in versions:
            memory.own = {}
        memory.versions = dict(versions)
        memory.exchange, memory.open, memory.outgoing = grants.exchange, True, None
        memory.opening = granted.opening
        memory.plans[grants.exchange] = plan
        self._predicting = None
        if open_plan is None or not _observes_the_same(open_plan, plan):
            memory.losses, memory.labelled = np.zeros(len(held_models.membership.catalogue)), 0
        memory.forget_plans()

    def late_task(self, held_models: HeldModels) -> LateTask:
        """The models to evaluate on past samples before the report of the open exchange."""
        memory = self.memory
        observed = held_models.membership.policy.observed(memory.plans[memory.exchange])
        unknown = ~memory.state.recent.known[0] & observed
        if is_control(held_models.membership.policy.local, memory.exchange):
            unknown = np.broadcast_to(observed, unknown.shape)
        return LateTask(unknown, list(memory.samples), memory.sampled)

    def remember(self, held_models: HeldModels, task: LateTask, outputs: AnyArray | None) -> Floats | None:
        """Record outputs on past samples; labels that arrived meanwhile come after them.

        Returns what fine-tuning lost, in an exchange that compares models with their first versions.
        """
        if outputs is None:
            return None
        newer = self.memory.sampled - task.sampled
        unknown = np.full((1, newer, *outputs.shape[2:]), np.nan, dtype=outputs.dtype)
        none = np.zeros((1, 0))
        samples = Samples.of(self.memory.exchange, np.concatenate([outputs, unknown], axis=1), none)
        session, memory = held_models.membership.session, self.memory
        compared = session.compare(memory.state, memory.plans[memory.exchange], samples)
        memory.state = session.remember(memory.state, memory.plans[memory.exchange], samples)
        return compared

    def begin_report(self, held_models: HeldModels) -> TuningTask:
        """The fine-tuning task for the report of the open exchange."""
        memory = self.memory
        plan = memory.plans[memory.exchange]
        policy, needed = held_models.membership.policy, plan.update_weight[0] > 0
        if tunes_pool(policy.local, held_models.membership.task) and needed.any():
            needed |= plan.prediction_weights[0] > 0
        if policy.own_model in held_models.tensors:
            needed[policy.own_model] = True
        tensors = {model: held_models.tensors[model] for model in np.flatnonzero(needed).tolist()}
        return TuningTask(memory.exchange, plan, tensors, list(memory.samples))

    def finish_report(
        self,
        held_models: HeldModels,
        task: TuningTask,
        deltas: dict[int, Arrays],
        left_out: list[int],
        compared: Floats | None,
    ) -> None:
        """Learn from the exchange, write its report, and request the next one.

        `left_out` are the models whose update is not finite.
        """
        memory, membership, plan = self.memory, held_models.membership, task.plan
        own = membership.policy.own_model
        if own is not None and own in deltas:
            self._change_own_copy(held_models, own, task.tensors[own], deltas[own])
            deltas = {model: delta for model, delta in deltas.items() if model != own}
        losses = self._observed(membership, plan)
        memory.state, reports = membership.session.learn(memory.state, plan, losses, compared=compared)
        memory.open = False
        updated, lost = np.zeros_like(reports.updated), np.zeros_like(reports.updated)
        updated[0, list(deltas)] = True
        lost[0, [model for model in left_out if model != own]] = True
        report = message_arrays(replace(reports, updated=updated, left_out=lost), "report")
        weights = {model: float(plan.update_weight[0, model]) for model in deltas}
        statistics = self._statistics(membership, plan)
        write_request(
            held_models, memory, task.exchange + 1, report=report, deltas=deltas, weights=weights, statistics=statistics
        )
        memory.scored, memory.score = 0, 0.0

    def _change_own_copy(self, held_models: HeldModels, model: int, before: Arrays, delta: Arrays) -> None:
        """Apply the fine-tuning of the device's own copy; nothing of it is sent."""
        keep_outputs(held_models, self.memory, [model])
        after = {name: before[name] + part for name, part in delta.items()}
        held_models.change(model, after)
        self.memory.own = after

    def _statistics(self, membership: Membership, plan: Plan) -> dict[str, Any] | None:
        """What the report reveals about predictions, besides what the policy needs."""
        if self.reveals == "nothing":
            return None
        found = {"samples": self.memory.scored, "score": self.memory.score}
        # By default, weights are sent only where the updates' weights reveal them anyway.
        if self.reveals == "use" or (self.reveals is None and membership.policy.weighs_by_use):
            found["use"] = plan.prediction_weights[0].tolist()
        return found

    def _observed(self, membership: Membership, plan: Plan) -> Floats:
        """[1, K] summed losses of the open exchange, NaN for models that are not observed."""
        return np.where(membership.policy.observed(plan), self.memory.losses[None], np.nan)


def _observes_the_same(one: Plan, other: Plan) -> bool:
    """Whether losses summed under one plan are valid under another."""
    return np.array_equal(one.held, other.held) and np.array_equal(one.prediction_weights, other.prediction_weights)
