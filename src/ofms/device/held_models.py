"""The models that a device holds: tensors, the networks that use them, outputs and updates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ofms.compute.client import Arrays
from ofms.core.errors import InvalidInput
from ofms.core.messages import Plan
from ofms.core.pooling import within_range
from ofms.core.typing import AnyArray
from ofms.device.membership import Membership
from ofms.policies.local_updates import Adapted, tunes_pool, tuning_window_of
from ofms.storage.arrays import shared_arrays

Sample = tuple[AnyArray, float | int]
_log = logging.getLogger("ofms.device")


class HeldModels:
    """Arrays by model, loaded into the networks of a membership."""

    def __init__(self, membership: Membership, tensors: Mapping[int, Arrays] | None = None) -> None:
        self.membership = membership
        self.tensors: dict[int, Arrays] = {}
        for model, each in (tensors or {}).items():
            self.put(model, each)

    def __iter__(self) -> Iterator[int]:
        return iter(self.tensors)

    def bytes_of(self, models: Iterable[int]) -> int:
        """Bytes of models, including the policy's working copies."""
        local = self.membership.policy.local
        copies = local.copies if local is not None else 1
        return copies * sum(int(self.membership.catalogue.storage[model]) for model in list(models))

    def read(self, model: int, content: bytes | memoryview) -> Arrays:
        """Decode the tensors of a model; reject them unless names, shapes and types match its network.

        They share the memory of the content: `put` a copy of them.
        """
        if not 0 <= model < len(self.membership.catalogue):
            raise InvalidInput("message", f"model {model}", "no such model in the dictionary")
        expected, tensors = self.membership.compute.layout(model), shared_arrays(content)
        for name, (shape, _) in expected.items():
            optional = name.endswith("num_batches_tracked")
            if not optional and (name not in tensors or tensors[name].shape != shape):
                raise InvalidInput("message", f"model {model}", f"{name} is missing or has another shape")
        for name, tensor in tensors.items():
            if name not in expected:
                raise InvalidInput("message", f"model {model}", f"it has no tensor {name[:40]!r}")
            if tensor.dtype != expected[name][1]:
                raise InvalidInput("message", f"model {model}", f"{name} is {tensor.dtype}, not {expected[name][1]}")
        return tensors

    def put_copy(self, model: int, tensors: Arrays) -> None:
        """Hold a model with memory of its own."""
        self.put(model, {name: tensor.copy() for name, tensor in tensors.items()})

    def put(self, model: int, tensors: Arrays) -> None:
        """Hold a model; its network uses the tensors in place, so that a prediction costs no copy."""
        self.tensors[model] = tensors
        self.membership.compute.hold(model, tensors)

    def change(self, model: int, tensors: Arrays) -> None:
        """Replace some tensors of a held model."""
        self.put(model, self.tensors[model] | tensors)

    def remove(self, model: int) -> None:
        """Release a model and its memory."""
        del self.tensors[model]
        self.membership.compute.release(model)

    def outputs(self, model: int, x: AnyArray, past: Sequence[Sample] = ()) -> AnyArray:
        """[n, C] outputs of a model, adapted to past samples if the policy adapts."""
        local, compute = self.membership.policy.local, self.membership.compute
        own: Arrays | None = None
        if isinstance(local, Adapted) and past:
            own = compute.adapted(model, self.tensors[model], *self._batch(past), local.adaptation_rate)
        try:
            outputs = within_range(compute.outputs(model, x, own))
        except (RuntimeError, ValueError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput("input", list(x.shape[1:]), f"the models do not accept it ({reason})") from None
        if outputs.ndim != 2:
            raise InvalidInput("input", list(x.shape[1:]), "the models interpret it as several samples; give one")
        return outputs

    def updates(
        self, exchange: int, plan: Plan, tensors: Mapping[int, Arrays], samples: Sequence[Sample]
    ) -> tuple[dict[int, Arrays], list[int]]:
        """Updates of models by fine-tuning, before weighting, and the models whose update is not finite.

        `tensors` include what their gradients need.
        """
        local = self.membership.policy.local
        window = tuning_window_of(local, self.membership.schedule, exchange)
        if local is None or window is None or not samples:
            return {}, []
        count = min(window.weights.size, len(samples))
        x, y = self._batch(samples[-count:])
        compute, weights = self.membership.compute, window.weights[-count:]
        own = self.membership.policy.own_model
        models = [model for model in tensors if plan.update_weight[0, model] > 0 or model == own]
        residuals, offset = None, None if plan.offset is None else plan.offset[0]
        if models and tunes_pool(local, self.membership.task):
            residuals = compute.residuals(tensors, x, y, plan.prediction_weights[0], offset)
        updates, left_out = {}, []
        for model in models:
            update = compute.update(model, tensors[model], x, y, weights, 1.0, local, residuals, offset)
            compute.settle()  # What its gradient needed.
            # One's own copy must be finite after the step, a sent update before it is weighted.
            changed = {name: tensors[model][name] + part for name, part in update.items()} if model == own else update
            if all(np.isfinite(array).all() for array in changed.values()):
                updates[model] = update
            else:
                left_out.append(model)
                name = self.membership.catalogue.names[model]
                _log.warning("the update of %s in exchange %d is not finite; it is left out", name, exchange)
        return updates, left_out

    def _batch(self, samples: Sequence[Sample]) -> tuple[AnyArray, AnyArray]:
        return np.stack([x for x, _ in samples]), self.membership.targets([y for _, y in samples])
