"""The engine: every model of the dictionary on the samples of every client, workers over models.

One gradient step from shared parameters is linear in the clients, so the updates that N clients would make of a model
fuse into one weighted backward pass (1r2), (3r2):

    θ_k ← θ_k - η_f/N · ∇ Σ_i w_ik L_i(θ_k),   w_ik = α/q_ik where client i uploads and holds k, else 0.

Models are independent of each other: they are what runs in parallel, with one intra-op thread a worker. Work is cut in
pieces that do not depend on the number of workers, so neither do the results.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import nn

from ofms.compute import personal
from ofms.compute.checks import is_finite, not_finite_update, require_finite_losses, require_fit
from ofms.compute.stacked import Stack, Workspace, is_stackable, stack_modules
from ofms.compute.tasks import sample_losses
from ofms.core.errors import InvalidInput
from ofms.core.schedule import Window
from ofms.core.typing import AnyArray, Flags, Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.speed import lay_channels_last, one_thread_a_worker
from ofms.policies.protocol import Adapted, Epochs, GradientStep, LocalUpdate

Deltas = dict[int, dict[str, torch.Tensor]]
Result = TypeVar("Result")

# Samples a forward and backward pass takes at once: as many as stay in the cache.
_IMAGES_AT_ONCE = 64
_VECTORS_AT_ONCE = 1024
# Models of one architecture whose layers are one batched product; those of similar numbers of samples go together.
_MODELS_AT_ONCE = 4
_MODELS_EVALUATED_AT_ONCE = 5
# Numbers in the parameters of clients that are trained side by side.
_VALUES_AT_ONCE = 2_000_000


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Losses [N, n, K] and outputs [N, n, K, C] of clients' samples; NaN where a model was not asked for."""

    losses: Floats
    outputs: AnyArray


@dataclass(frozen=True, eq=False)
class Pending(Generic[Result]):
    """Work that was handed to the workers; `result` waits for it.

    What is asked for next can start before: workers stay busy, and the caller has its own work to do meanwhile.
    """

    finish: Callable[[], Result]

    def result(self) -> Result:
        return self.finish()


class ThreadedCompute:
    """The dictionary's parameters, and all that is computed with them.

    Use it as a context: it owns a pool of threads. Evaluations and updates that were asked for must have their result
    before `apply` changes the parameters.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        stream: Stream,
        *,
        dtype: torch.dtype = torch.float32,
        workers: int | None = None,
    ) -> None:
        self.task = dictionary.task
        self.names = [model.name for model in dictionary.models]
        self.values = [model.values for model in dictionary.models]
        self.trainable = [model.trainable for model in dictionary.models]
        self.modules = [_load(model.module, model.tensors, model.trainable, dtype) for model in dictionary.models]
        self.parameters = [dict(module.named_parameters()) for module in self.modules]
        self.width = require_fit(dictionary, stream)
        self.x = torch.from_numpy(np.ascontiguousarray(stream.x)).to(dtype)
        self.y = torch.from_numpy(np.ascontiguousarray(stream.y)).to(
            torch.int64 if self.task == "classification" else dtype
        )
        self.images = self.x.ndim == 5
        self.stacks = _stacks(dictionary, self.modules)
        self.stack_parts = [part for stack in self.stacks for part in stack.parts(_MODELS_EVALUATED_AT_ONCE)]
        self.single = sorted(set(range(len(self.modules))) - {model for stack in self.stacks for model in stack.models})
        self.workers = workers if workers is not None else (os.cpu_count() or 1)
        if self.workers < 1:
            raise InvalidInput("workers", self.workers, "give at least 1")
        self._threads = one_thread_a_worker()
        self._workspaces: dict[tuple[int, str], Workspace] = {}
        self._shells: dict[tuple[int, int], nn.Module] = {}

    def __enter__(self) -> Self:
        self._threads.__enter__()
        self._pool = ThreadPoolExecutor(self.workers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._threads.__exit__(kind, error, trace)

    def evaluate(self, span: tuple[int, int], held: Flags, *, hindsight: bool) -> Pending[Evaluation]:
        """Evaluate the held [N, K] models of each client on its samples of some rounds; in hindsight, all models.

        What is held is computed by itself, so that its numbers do not depend on `hindsight`.
        """
        result = self._empty_evaluation(span)

        def evaluate_stack(stack: Stack) -> None:
            x, y = self.x[:, span[0] : span[1]], self.y[:, span[0] : span[1]]
            with torch.inference_mode():
                outputs = stack.outputs(x.flatten(0, 1), self._workspace("evaluate"))
                losses = sample_losses(outputs.flatten(0, 1), y.flatten().repeat(len(stack.models)), self.task)
            wanted = (held[:, stack.models] | hindsight)[:, None]
            by_model = losses.reshape(len(stack.models), *y.shape).permute(1, 2, 0).numpy()
            result.losses[:, :, stack.models] = np.where(wanted, by_model, np.nan)
            by_model = outputs.reshape(len(stack.models), *y.shape, self.width).permute(1, 2, 0, 3).numpy()
            result.outputs[:, :, stack.models] = np.where(wanted[..., None], by_model, np.nan)

        def evaluate_single(model: int) -> None:
            for wanted in (held[:, model], ~held[:, model] & hindsight):
                rows = np.flatnonzero(wanted)
                if rows.size:
                    with torch.inference_mode():
                        x = self.x[rows, span[0] : span[1]]
                        output = torch.cat([self.modules[model](part) for part in self._pieces(x.flatten(0, 1))])
                        self._fill(result, span, model, rows, output.unflatten(0, x.shape[:2]))

        jobs = self._start(
            [partial(evaluate_stack, part) for part in self.stack_parts]
            + [partial(evaluate_single, model) for model in self.single]
        )
        return Pending(partial(self._evaluation, jobs, result, span, held))

    def evaluate_adapted(self, span: tuple[int, int], held: Flags, past: Window, rate: float) -> Pending[Evaluation]:
        """Evaluate copies of the held models that each client adapted to its own past samples."""
        result = self._empty_evaluation(span)

        def evaluate_some(model: int, rows: AnyArray) -> None:
            module, start = self._own_copies(model, rows.size)
            adapted = personal.adapt(module, start, *self._samples(rows, past), rate, self.task)
            with torch.no_grad():
                output = personal.outputs(module, adapted, self.x[rows, span[0] : span[1]])
            self._fill(result, span, model, rows, output)

        jobs = self._start([partial(evaluate_some, *piece) for piece in _pieces_of_clients(held, self.values)])
        return Pending(partial(self._evaluation, jobs, result, span, held))

    def _evaluation(
        self, jobs: list[Future[None]], result: Evaluation, span: tuple[int, int], held: Flags
    ) -> Evaluation:
        for job in jobs:
            job.result()
        require_finite_losses(result.losses, held, self.names, span[0])
        return result

    def _empty_evaluation(self, span: tuple[int, int]) -> Evaluation:
        shape = (self.x.shape[0], span[1] - span[0], len(self.modules))
        return Evaluation(np.full(shape, np.nan), np.full((*shape, self.width), np.nan))

    def _fill(
        self, result: Evaluation, span: tuple[int, int], model: int, rows: AnyArray, output: torch.Tensor
    ) -> None:
        targets = self.y[rows, span[0] : span[1]]
        losses = sample_losses(output.flatten(0, 1), targets.flatten(), self.task)
        result.losses[rows, :, model] = losses.reshape(targets.shape).numpy()
        result.outputs[rows, :, model] = output.numpy()

    def update(self, window: Window, update_weight: Floats, local: LocalUpdate) -> Pending[Deltas]:
        """The updates of all clients, weighted by [N, K] `update_weight` and summed, for each model that has any."""
        if isinstance(local, GradientStep):
            counts = np.count_nonzero(update_weight, axis=0)
            # The longest first, so that no worker is left with it at the end.
            order = [int(model) for model in np.argsort(-counts, kind="stable") if counts[model]]
            jobs = [
                partial(self._fused_step, model, window, update_weight, local.rate)
                for model in order
                if model in self.single
            ]
            for stack in self.stacks:
                positions = [stack.models.index(model) for model in order if model in stack.models]
                for first in range(0, len(positions), _MODELS_AT_ONCE):
                    some = positions[first : first + _MODELS_AT_ONCE]
                    jobs.append(partial(self._stacked_step, stack, some, window, update_weight, local.rate))
        else:
            jobs = [
                partial(self._own_steps, model, rows, window, update_weight, local)
                for model, rows in _pieces_of_clients(update_weight > 0, self.values)
            ]
        return Pending(partial(_sum_deltas, self._start(jobs)))

    def apply(self, deltas: Deltas, step: Floats) -> None:
        """θ_k ← θ_k + step_k · Δ_k, eq. (3r2)."""
        with torch.no_grad():
            for model, delta in deltas.items():
                parameters: list[torch.Tensor] = [self.parameters[model][name] for name in delta]
                torch._foreach_add_(parameters, list(delta.values()), alpha=float(step[model]))

    def state(self, model: int) -> dict[str, torch.Tensor]:
        """A copy of a model's parameters and buffers as they are now."""
        stored = self.modules[model].state_dict()
        return {name: tensor.clone() for name, tensor in stored.items() if not name.endswith("num_batches_tracked")}

    def load_state(self, model: int, tensors: dict[str, torch.Tensor]) -> None:
        """Set a model's parameters and buffers, in place."""
        stored = self.modules[model].state_dict()
        with torch.no_grad():
            for name, tensor in tensors.items():
                stored[name].copy_(tensor)

    def _fused_step(self, model: int, window: Window, update_weight: Floats, rate: float) -> Deltas:
        rows = np.flatnonzero(update_weight[:, model])
        x, y = self._samples(rows, window)
        weights = torch.from_numpy(np.outer(update_weight[rows, model], window.weights).reshape(-1)).to(self.x.dtype)
        module, names = self.modules[model], self.trainable[model]
        leaves = self._leaves(model)
        total: list[torch.Tensor] = []
        parts = zip(self._pieces(x.flatten(0, 1)), self._pieces(y.flatten()), self._pieces(weights), strict=True)
        for xs, ys, ws in parts:
            loss = (sample_losses(module(xs), ys, self.task) * ws).sum()
            slopes = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            total = [whole.add_(part) for whole, part in zip(total, slopes, strict=True)] if total else list(slopes)
        update = {name: slope.mul_(-rate) for name, slope in zip(names, total, strict=True)}
        self._require_finite_update(update, model, window, update_weight)
        return {model: update}

    def _stacked_step(
        self, stack: Stack, positions: list[int], window: Window, update_weight: Floats, rate: float
    ) -> Deltas:
        some = stack.some(positions)
        workspace = self._workspace("update")
        counts = np.count_nonzero(update_weight[:, some.models], axis=0)
        # Every model's own clients, filled up with clients of weight 0.
        rows = np.argsort(update_weight[:, some.models] == 0, axis=0, kind="stable")[: counts.max()].T
        weights = np.take_along_axis(update_weight[:, some.models].T, rows, axis=1)
        weights = -rate * weights[:, :, None] * window.weights
        samples = torch.from_numpy(weights.reshape(len(some.models), -1)).to(self.x.dtype)
        x, y = self._samples(rows, window)
        total: dict[str, torch.Tensor] = {}
        pieces = -(-samples.shape[1] // _VECTORS_AT_ONCE)
        parts = (tensor.tensor_split(pieces, dim=1) for tensor in (x.flatten(1, 2), y.flatten(1, 2), samples))
        for xs, ys, ws in zip(*parts, strict=True):
            slopes = some.gradients(xs, ys, ws, self.task, workspace)
            total = {name: total[name].add_(slopes[name]) for name in total} if total else slopes
        updates = {
            model: {name: total[name][row] for name in self.trainable[model]} for row, model in enumerate(some.models)
        }
        if not is_finite(total.values()):
            for model, update in updates.items():
                self._require_finite_update(update, model, window, update_weight)
        return updates

    def _own_steps(
        self, model: int, rows: AnyArray, window: Window, update_weight: Floats, local: Epochs | Adapted
    ) -> Deltas:
        module, start = self._own_copies(model, rows.size)
        x, y = self._samples(rows, window)
        after = personal.train(module, start, x, y, local, self.task)
        weights = torch.from_numpy(update_weight[rows, model]).to(self.x.dtype)
        update = {name: torch.tensordot(weights, after[name] - start[name], dims=1) for name in after}
        self._require_finite_update(update, model, window, update_weight)
        return {model: update}

    def _workspace(self, purpose: str) -> Workspace:
        """This thread's memory: one for evaluation, whose tensors take no gradient, one for updates."""
        return self._workspaces.setdefault((threading.get_ident(), purpose), Workspace())

    def _own_copies(self, model: int, clients: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        """A network for this thread alone, which `torch.func` fills with the clients' parameters, and those."""
        key = (threading.get_ident(), model)
        if key not in self._shells:
            self._shells[key] = copy.deepcopy(self.modules[model])
        return self._shells[key], personal.own_copies(self.modules[model], self.trainable[model], clients)

    def _samples(self, rows: AnyArray, window: Window) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[rows, window.first : window.stop], self.y[rows, window.first : window.stop]

    def _pieces(self, samples: torch.Tensor) -> Iterable[torch.Tensor]:
        if not self.images:
            vectors: tuple[torch.Tensor, ...] = samples.split(_VECTORS_AT_ONCE)
            return vectors
        layout = torch.channels_last if samples.ndim == 4 else torch.contiguous_format
        return (part.contiguous(memory_format=layout) for part in samples.split(_IMAGES_AT_ONCE))

    def _start(self, tasks: Sequence[Callable[[], Result]]) -> list[Future[Result]]:
        return [self._pool.submit(task) for task in tasks]

    def _require_finite_update(
        self, update: dict[str, torch.Tensor], model: int, window: Window, update_weight: Floats
    ) -> None:
        if is_finite(update.values()):
            return
        clients = np.flatnonzero(update_weight[:, model])
        for client in clients.tolist():
            x, y = self._samples(np.array([client]), window)
            losses = sample_losses(self.modules[model](x[0]), y[0], self.task)
            slopes = torch.autograd.grad(losses.sum(), list(self._leaves(model)), allow_unused=True)
            if not is_finite(slope for slope in slopes if slope is not None):
                break
        else:
            client = int(clients[np.argmax(update_weight[clients, model])])
        raise not_finite_update(self.names[model], client, float(update_weight[client, model]), window.stop)

    def _leaves(self, model: int) -> list[torch.Tensor]:
        return [self.parameters[model][name] for name in self.trainable[model]]


def _load(
    module: nn.Module, tensors: dict[str, torch.Tensor], trainable: tuple[str, ...], dtype: torch.dtype
) -> nn.Module:
    module = copy.deepcopy(module)
    module.load_state_dict(tensors, strict=False)
    module.to(dtype)
    lay_channels_last(module)
    module.eval()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trainable)
    return module


def _stacks(dictionary: Dictionary, modules: list[nn.Module]) -> list[Stack]:
    alike: dict[str, list[int]] = {}
    for index, module in enumerate(modules):
        if is_stackable(module):
            alike.setdefault(str(module), []).append(index)
    return [
        stack_modules(
            models,
            [module for module in (modules[index] for index in models) if isinstance(module, nn.Sequential)],
        )
        for models in alike.values()
        if len(models) > 1
    ]


def _sum_deltas(jobs: list[Future[Deltas]]) -> Deltas:
    """The updates of all jobs, those of one model summed in the order of the jobs."""
    deltas: Deltas = {}
    for job in jobs:
        for model, part in job.result().items():
            whole = deltas.get(model)
            deltas[model] = part if whole is None else {name: whole[name] + part[name] for name in whole}
    return deltas


def _pieces_of_clients(wanted: Flags, values: list[int]) -> Iterable[tuple[int, AnyArray]]:
    """(model, clients) in pieces whose size depends on the model alone."""
    for model in range(wanted.shape[1]):
        rows = np.flatnonzero(wanted[:, model])
        at_once = max(1, _VALUES_AT_ONCE // values[model])
        for first in range(0, rows.size, at_once):
            yield model, rows[first : first + at_once]
