"""Updates of models: one weighted backward pass for all clients, or local training of each client.

One gradient step from shared parameters is linear in the clients, so the updates of a model by N clients fuse into one
weighted backward pass (1r2), (3r2):

    θ_k ← θ_k - η_f/N · ∇ Σ_i w_ik L_i(θ_k),   w_ik = α/q_ik if client i uploads and holds k, else 0.

Clients are summed shard by shard (`ofms.compute.shards`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ofms.compute import personal
from ofms.compute.checks import is_finite
from ofms.compute.networks import Networks
from ofms.compute.parts import Part
from ofms.compute.protocol import ShardUpdates, Summed, Tensors
from ofms.compute.samples import Samples
from ofms.compute.scratch import Scratch
from ofms.compute.shards import Block
from ofms.compute.stacked import Stack
from ofms.compute.tasks import sample_losses, shifted
from ofms.core.schedule import Window
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate

Updates = dict[int, Tensors]

# Models per batched product, or more as long as their samples fit the cache; models with similar numbers of samples are
# batched together.
_MODELS_AT_ONCE, _SAMPLES_AT_ONCE = 4, 4096
# Total number of parameters of the clients that are trained in one batch.
_VALUES_AT_ONCE = 2_000_000


@dataclass(frozen=True, eq=False)
class ShardPart:
    """What the clients of one shard update: [n, K] `weights` of n clients from the `first` row on.

    [n, W, C] `residuals` are gradients in the outputs, instead of those of the models' own losses; [n, C] `offset` is
    added to the outputs before their losses are computed.
    """

    window: Window
    first: int
    weights: Floats
    rate: float
    residuals: Floats | None
    offset: Floats | None

    def only(self, client: int, model: int) -> ShardPart:
        """The update of one model by one client."""
        alone = np.zeros_like(self.weights)
        alone[client, model] = self.weights[client, model]
        return replace(self, weights=alone)


class Updater:
    """Split updates into jobs that do not depend on the number of workers, so that neither do the results."""

    def __init__(self, networks: Networks, samples: Samples, scratch: Scratch, block: Block) -> None:
        self.networks, self.samples, self.scratch, self.task = networks, samples, scratch, samples.task
        self.block = block

    def jobs(self, whole: Part, local: LocalUpdate) -> Iterable[tuple[int, Callable[[], Summed]]]:
        """Independent jobs with the numbers of their shards.

        The longest come first, so that no worker is still busy with a long one at the end.
        """
        window, update_weight = whole.window, whole.update_weight
        found: list[tuple[int, int, Callable[[], Summed]]] = []
        for shard, rows in self.block.shards:
            first, stop = int(rows[0]), int(rows[-1]) + 1
            if not isinstance(local, GradientStep):
                for model, some in pieces_of_clients(update_weight[first:stop] > 0, self.networks.values):
                    job = partial(self._own_steps, model, some + first, window, update_weight, local)
                    found.append((some.size * self.networks.values[model], shard, job))
                continue
            given = [None if each is None else each[first:stop] for each in (whole.residuals, whole.offset)]
            part = ShardPart(window, first, update_weight[first:stop], local.rate, *given)
            found += [(size, shard, job) for size, job in self._step_jobs(part)]
        return [(shard, job) for _, shard, job in sorted(found, key=lambda each: -each[0])]

    def _step_jobs(self, part: ShardPart) -> Iterable[tuple[int, Callable[[], Summed]]]:
        """The jobs of one shard, with their sizes: a job of a single network takes longer than any of small ones."""
        counts = np.count_nonzero(part.weights, axis=0)
        order = [int(model) for model in np.argsort(-counts, kind="stable") if counts[model]]
        for model in order:
            if model in self.networks.single:
                yield int(counts[model]) * self.networks.values[model], partial(self._fused_step, model, part)
        for stack in self.networks.stacks:
            positions = [stack.models.index(model) for model in order if model in stack.models]
            while positions:
                samples = int(counts[stack.models[positions[0]]]) * part.window.weights.size
                at_once = max(_MODELS_AT_ONCE, _SAMPLES_AT_ONCE // samples)
                some, positions = positions[:at_once], positions[at_once:]
                yield samples * len(some), partial(self._stacked_step, stack, some, part)

    def _fused_step(self, model: int, part: ShardPart) -> Summed:
        update = self._update(model, part)
        if is_finite(update.values()):
            return Summed({model: update})
        return self._without_broken([model], part)

    def _update(self, model: int, part: ShardPart) -> Tensors:
        rows, window = np.flatnonzero(part.weights[:, model]), part.window
        x, y = self.samples.of(rows + part.first, window.first, window.stop)
        weights = self.samples.weights(np.outer(part.weights[rows, model], window.weights).reshape(-1))
        module, names = self.networks.modules[model], self.networks.trainable[model]
        leaves = self.networks.leaves(model)
        total: list[torch.Tensor] = []
        pieces = self.samples.even_pieces
        given = None if part.residuals is None else self.samples.weights(part.residuals[rows]).flatten(0, 1)
        offset = None
        if part.offset is not None:
            offset = self.samples.weights(part.offset[rows]).repeat_interleave(window.weights.size, dim=0)
        done = 0
        for xs, ys, ws in zip(pieces(x.flatten(0, 1)), pieces(y.flatten()), pieces(weights), strict=True):
            some = slice(done, done + len(ws))
            if given is None:
                outputs = shifted(module(xs), None if offset is None else offset[some])
                loss = (sample_losses(outputs, ys, self.task) * ws).sum()
            else:
                loss = (module(xs) * given[some] * ws[:, None]).sum()
            done += len(ws)
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            total = [a.add_(b) for a, b in zip(total, gradients, strict=True)] if total else list(gradients)
        return {name: gradient.mul_(-part.rate) for name, gradient in zip(names, total, strict=True)}

    def _stacked_step(self, stack: Stack, positions: list[int], part: ShardPart) -> Summed:
        some, window = stack.some(positions), part.window
        workspace = self.scratch.workspace("update")
        counts = np.count_nonzero(part.weights[:, some.models], axis=0)
        # Each model's clients, padded with clients of weight 0.
        rows = np.argsort(part.weights[:, some.models] == 0, axis=0, kind="stable")[: counts.max()].T
        weights = np.take_along_axis(part.weights[:, some.models].T, rows, axis=1)
        weights = -part.rate * weights[:, :, None] * window.weights
        sample_weights = self.samples.weights(weights.reshape(len(some.models), -1))
        x, y = self.samples.of(rows + part.first, window.first, window.stop)
        total: Tensors = {}
        pieces = -(-sample_weights.shape[1] // self.samples.at_once)
        parts = (tensor.tensor_split(pieces, dim=1) for tensor in (x.flatten(1, 2), y.flatten(1, 2), sample_weights))
        given: Iterable[torch.Tensor | None] = [None] * pieces
        offsets: Iterable[torch.Tensor | None] = [None] * pieces
        if part.residuals is not None:
            given = self.samples.weights(part.residuals[rows]).flatten(1, 2).tensor_split(pieces, dim=1)
        elif part.offset is not None:
            whole = self.samples.weights(part.offset[rows]).repeat_interleave(window.weights.size, dim=1)
            offsets = whole.tensor_split(pieces, dim=1)
        for xs, ys, ws, gs, each in zip(*parts, given, offsets, strict=True):
            gradients = some.gradients(xs, ys, ws, self.task, workspace, gs, each)
            total = {name: total[name].add_(gradients[name]) for name in total} if total else gradients
        trainable = self.networks.trainable
        updates = {
            model: {name: total[name][row] for name in trainable[model]} for row, model in enumerate(some.models)
        }
        if is_finite(total.values()):
            return Summed(updates)
        broken = [model for model, update in updates.items() if not is_finite(update.values())]
        again = self._without_broken(broken, part)
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

    def _without_broken(self, models: list[int], part: ShardPart) -> Summed:
        """The updates of models whose sums are not finite, without the clients whose own updates are not."""
        updates: Updates = {}
        left_out: list[tuple[int, int]] = []
        for model in models:
            kept = part.weights.copy()
            for client in np.flatnonzero(part.weights[:, model]).tolist():
                if not is_finite(self._update(model, part.only(client, model)).values()):
                    left_out.append((client + part.first, model))
                    kept[client, model] = 0.0
            if kept[:, model].any():
                updates[model] = self._update(model, replace(part, weights=kept))
        return Summed(updates, left_out)


def norm_of(tensors: Iterable[torch.Tensor]) -> float:
    """The Euclidean norm of tensors together."""
    return float(torch.stack([wide(tensor.detach()).square().sum() for tensor in tensors]).sum().sqrt())


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision where the device has it."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def add_updates(one: Updates, other: Updates) -> Updates:
    """The sums of updates by model; a model that only one of them updates keeps its own."""
    for model, part in other.items():
        whole = one.get(model)
        if whole is None:
            one[model] = part
        else:
            for name, tensor in whole.items():
                tensor.add_(part[name])
    return one


def by_model(jobs: Iterable[Future[Summed]]) -> Summed:
    """The updates of jobs of one model each."""
    found = [job.result() for job in jobs]
    updates = {model: update for each in found for model, update in each.updates.items()}
    return Summed(updates, sorted(pair for each in found for pair in each.left_out))


def sum_by_shard(jobs: Iterable[tuple[int, Future[Summed]]], numbers: range) -> ShardUpdates:
    """The updates of each shard; those of one model are summed in the order of the jobs."""
    shards: dict[int, Updates] = {shard: {} for shard in numbers}
    left_out: list[tuple[int, int]] = []
    for shard, job in jobs:
        summed = job.result()
        left_out += summed.left_out
        add_updates(shards[shard], summed.updates)
    return ShardUpdates(shards, sorted(left_out))


def pieces_of_clients(wanted: Flags, values: list[int]) -> Iterator[tuple[int, Integers]]:
    """(model, clients) in pieces whose size depends on the model alone."""
    for model in range(wanted.shape[1]):
        rows = np.flatnonzero(wanted[:, model])
        at_once = max(1, _VALUES_AT_ONCE // values[model])
        for first in range(0, rows.size, at_once):
            yield model, rows[first : first + at_once]
