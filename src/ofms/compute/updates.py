"""Updates of models: one weighted backward pass for all clients, or local training of each client.

One gradient step from shared parameters is linear in the clients, so the updates of a model by N clients fuse into one
weighted backward pass (1r2), (3r2):

    θ_k ← θ_k - η_f/N · ∇ Σ_i w_ik L_i(θ_k),   w_ik = α/q_ik if client i uploads and holds k, else 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial

import numpy as np
import torch

from ofms.compute import personal
from ofms.compute.checks import is_finite
from ofms.compute.networks import Networks
from ofms.compute.protocol import Summed, Tensors
from ofms.compute.samples import Samples
from ofms.compute.scratch import Scratch
from ofms.compute.stacked import Stack
from ofms.compute.tasks import sample_losses
from ofms.core.schedule import Window
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate

Updates = dict[int, Tensors]

# Models per batched product; models with similar numbers of samples are batched together.
_MODELS_AT_ONCE = 4
# Total number of parameters of the clients that are trained in one batch.
_VALUES_AT_ONCE = 2_000_000


class Updater:
    """Split updates into jobs that do not depend on the number of workers, so that neither do the results."""

    def __init__(self, networks: Networks, samples: Samples, scratch: Scratch) -> None:
        self.networks, self.samples, self.scratch, self.task = networks, samples, scratch, samples.task

    def jobs(
        self, window: Window, update_weight: Floats, local: LocalUpdate, residuals: Floats | None = None
    ) -> Iterable[Callable[[], Summed]]:
        """Independent jobs, the longest first, so that no worker is still busy with a long one at the end."""
        if not isinstance(local, GradientStep):
            for model, rows in pieces_of_clients(update_weight > 0, self.networks.values):
                yield partial(self._own_steps, model, rows, window, update_weight, local)
            return
        given = (window, update_weight, local.rate, residuals)
        counts = np.count_nonzero(update_weight, axis=0)
        order = [int(model) for model in np.argsort(-counts, kind="stable") if counts[model]]
        for model in order:
            if model in self.networks.single:
                yield partial(self._fused_step, model, *given)
        for stack in self.networks.stacks:
            positions = [stack.models.index(model) for model in order if model in stack.models]
            for first in range(0, len(positions), _MODELS_AT_ONCE):
                some = positions[first : first + _MODELS_AT_ONCE]
                yield partial(self._stacked_step, stack, some, *given)

    def _fused_step(
        self, model: int, window: Window, update_weight: Floats, rate: float, residuals: Floats | None
    ) -> Summed:
        update = self._update(model, window, update_weight, rate, residuals)
        if is_finite(update.values()):
            return Summed({model: update})
        return self._without_broken([model], window, update_weight, rate, residuals)

    def _update(
        self, model: int, window: Window, update_weight: Floats, rate: float, residuals: Floats | None
    ) -> Tensors:
        rows = np.flatnonzero(update_weight[:, model])
        x, y = self.samples.of(rows, window.first, window.stop)
        weights = self.samples.weights(np.outer(update_weight[rows, model], window.weights).reshape(-1))
        module, names = self.networks.modules[model], self.networks.trainable[model]
        leaves = self.networks.leaves(model)
        total: list[torch.Tensor] = []
        pieces = self.samples.pieces
        given = None if residuals is None else self.samples.weights(residuals[rows]).flatten(0, 1)
        for place, (xs, ys, ws) in enumerate(
            zip(pieces(x.flatten(0, 1)), pieces(y.flatten()), pieces(weights), strict=True)
        ):
            if given is None:
                loss = (sample_losses(module(xs), ys, self.task) * ws).sum()
            else:
                part = given[place * self.samples.at_once :][: len(ws)]
                loss = (module(xs) * part * ws[:, None]).sum()
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            total = [a.add_(b) for a, b in zip(total, gradients, strict=True)] if total else list(gradients)
        return {name: gradient.mul_(-rate) for name, gradient in zip(names, total, strict=True)}

    def _stacked_step(
        self,
        stack: Stack,
        positions: list[int],
        window: Window,
        update_weight: Floats,
        rate: float,
        residuals: Floats | None,
    ) -> Summed:
        some = stack.some(positions)
        workspace = self.scratch.workspace("update")
        counts = np.count_nonzero(update_weight[:, some.models], axis=0)
        # Each model's clients, padded with clients of weight 0.
        rows = np.argsort(update_weight[:, some.models] == 0, axis=0, kind="stable")[: counts.max()].T
        weights = np.take_along_axis(update_weight[:, some.models].T, rows, axis=1)
        weights = -rate * weights[:, :, None] * window.weights
        sample_weights = self.samples.weights(weights.reshape(len(some.models), -1))
        x, y = self.samples.of(rows, window.first, window.stop)
        total: Tensors = {}
        pieces = -(-sample_weights.shape[1] // self.samples.at_once)
        parts = (tensor.tensor_split(pieces, dim=1) for tensor in (x.flatten(1, 2), y.flatten(1, 2), sample_weights))
        given: Iterable[torch.Tensor | None] = [None] * pieces
        if residuals is not None:
            given = self.samples.weights(residuals[rows]).flatten(1, 2).tensor_split(pieces, dim=1)
        for xs, ys, ws, gs in zip(*parts, given, strict=True):
            gradients = some.gradients(xs, ys, ws, self.task, workspace, gs)
            total = {name: total[name].add_(gradients[name]) for name in total} if total else gradients
        trainable = self.networks.trainable
        updates = {
            model: {name: total[name][row] for name in trainable[model]} for row, model in enumerate(some.models)
        }
        if is_finite(total.values()):
            return Summed(updates)
        broken = [model for model, update in updates.items() if not is_finite(update.values())]
        again = self._without_broken(broken, window, update_weight, rate, residuals)
        sound = {model: update for model, update in updates.items() if model not in broken}
        return Summed(sound | again.updates, again.left_out)

    def _own_steps(
        self, model: int, rows: Integers, window: Window, update_weight: Floats, local: Epochs | Adapted
    ) -> Summed:
        module, start = self.scratch.own_copies(model, rows.size)
        x, y = self.samples.of(rows, window.first, window.stop)
        after = personal.train(module, start, x, y, local, self.task)
        weights = self.samples.weights(update_weight[rows, model])
        changes = {name: after[name] - start[name] for name in after}
        update = {name: torch.tensordot(weights, part, dims=1) for name, part in changes.items()}
        if is_finite(update.values()):
            return Summed({model: update})
        finite = [is_finite(weights[row] * part[row] for part in changes.values()) for row in range(rows.size)]
        left_out = [(client, model) for client, sound in zip(rows.tolist(), finite, strict=True) if not sound]
        kept = torch.tensor(finite, device=weights.device)
        update = {name: torch.tensordot(weights[kept], part[kept], dims=1) for name, part in changes.items()}
        return Summed({model: update} if any(finite) else {}, left_out)

    def _without_broken(
        self, models: list[int], window: Window, update_weight: Floats, rate: float, residuals: Floats | None
    ) -> Summed:
        """The updates of models whose sums are not finite, without the clients whose own updates are not."""
        updates: Updates = {}
        left_out: list[tuple[int, int]] = []
        for model in models:
            kept = update_weight.copy()
            for client in np.flatnonzero(update_weight[:, model]).tolist():
                alone = np.zeros_like(update_weight)
                alone[client, model] = update_weight[client, model]
                if not is_finite(self._update(model, window, alone, rate, residuals).values()):
                    left_out.append((client, model))
                    kept[client, model] = 0.0
            if kept[:, model].any():
                updates[model] = self._update(model, window, kept, rate, residuals)
        return Summed(updates, left_out)


def norm_of(tensors: Iterable[torch.Tensor]) -> float:
    """The Euclidean norm of tensors together."""
    return float(torch.stack([wide(tensor.detach()).square().sum() for tensor in tensors]).sum().sqrt())


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision where the device has it."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def sum_updates(jobs: Iterable[Future[Summed]]) -> Summed:
    """The updates of all jobs; those of one model are summed in the order of the jobs."""
    updates: Updates = {}
    left_out: list[tuple[int, int]] = []
    for job in jobs:
        summed = job.result()
        left_out += summed.left_out
        for model, part in summed.updates.items():
            whole = updates.get(model)
            updates[model] = part if whole is None else {name: whole[name] + part[name] for name in whole}
    return Summed(updates, sorted(left_out))


def pieces_of_clients(wanted: Flags, values: list[int]) -> Iterator[tuple[int, Integers]]:
    """(model, clients) in pieces whose size depends on the model alone."""
    for model in range(wanted.shape[1]):
        rows = np.flatnonzero(wanted[:, model])
        at_once = max(1, _VALUES_AT_ONCE // values[model])
        for first in range(0, rows.size, at_once):
            yield model, rows[first : first + at_once]
