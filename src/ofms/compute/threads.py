"""Compute on this machine: a pool of threads over models, one intra-op thread per worker; or one accelerator.

Models and shards are independent, so they run in parallel. Work is split into pieces that do not depend on the number
of workers, so neither do the results. An accelerator needs no threads: it works through one queue, which the caller
fills.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

import numpy as np
import torch

from ofms.compute import personal
from ofms.compute.by_client import UpdatesByClient
from ofms.compute.checks import require_fit
from ofms.compute.devices import Delivery, reproducible
from ofms.compute.evaluation import EvaluationBuilder, PastOutputs
from ofms.compute.evaluator import Evaluator
from ofms.compute.momentum import sizes_of
from ofms.compute.networks import Networks
from ofms.compute.parts import Part
from ofms.compute.pool_gradients import PoolGradients
from ofms.compute.protocol import Adaptation, ClientCopies, Combine, Evaluation, Pending, ShardUpdates, Summed, Tensors
from ofms.compute.samples import Samples
from ofms.compute.scratch import Scratch
from ofms.compute.shards import Block, shard_count
from ofms.compute.updates import Updater, Updates, by_model, pieces_of_clients, sum_by_shard
from ofms.core.errors import InvalidInput
from ofms.core.pooling import Pooling
from ofms.core.schedule import Window
from ofms.core.tasks import done
from ofms.core.typing import Flags, Floats, Integers
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.speed import one_thread_per_worker
from ofms.policies.local_updates import LocalUpdate, tunes_pool

T = TypeVar("T")


class ThreadedCompute:
    """`Compute` on a pool of threads.

    Parameters
    ----------
    workers
        Number of threads; one per core by default. The results do not depend on it.
    device
        PyTorch device of parameters and samples.
    block
        The shards of the stream's clients; by default as many as the number of clients suggests.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        stream: Stream,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        block: Block | None = None,
    ) -> None:
        self.workers = workers if workers is not None else (os.cpu_count() or 1)
        if self.workers < 1:
            raise InvalidInput("workers", self.workers, "give at least 1")
        require_fit(dictionary, stream)
        self.device = torch.device(device)
        self.like = torch.empty(0, dtype=dtype, device=self.device)
        self.networks = Networks(dictionary, dtype, self.device)
        self.samples = Samples(stream, dtype, self.device)
        images = self.samples.images
        self.block = block or Block.of(stream.clients, shard_count(stream.clients, None, images=images))
        self.shards = len(self.block.bounds) - 1
        self._scratch = Scratch(self.networks, self.device)
        self._evaluator = Evaluator(self.networks, self.samples, self._scratch, self.block)
        self._updater = Updater(self.networks, self.samples, self._scratch, self.block)
        self._by_client = UpdatesByClient(self.networks, self.samples, self._scratch)
        self._pools = PoolGradients(self.networks, self.samples, self.block)
        self._contexts = ExitStack()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        with ExitStack() as contexts:
            contexts.enter_context(one_thread_per_worker())
            contexts.enter_context(reproducible(self.device))
            if self.device.type == "cpu":
                self._pool = ThreadPoolExecutor(self.workers)
                contexts.callback(self._pool.shutdown, cancel_futures=True)
            self._contexts = contexts.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.close()

    def evaluate(
        self,
        span: tuple[int, int],
        held: Flags,
        prediction_weights: Floats,
        *,
        hindsight: bool,
        adaptation: Adaptation | None = None,
        pooling: Pooling = "mean",
        late: Integers | None = None,
        own: ClientCopies | None = None,
        offset: Floats | None = None,
    ) -> Pending[Evaluation]:
        targets = self.samples.targets[:, span[0] : span[1]]
        past = None if late is None else PastOutputs(np.where(held, late, 0), span)
        builder = partial(EvaluationBuilder, targets, prediction_weights, self.samples.task, pooling, offset=offset)
        # Models as clients use them, if these differ from the shared ones.
        shared, copied = builder(outputs_of=held if past is not None else None), builder()
        delivery = Delivery(self.device)
        has_copies = adaptation is not None or own is not None
        jobs: list[Future[None]] = []
        own_outputs: list[tuple[int, Integers, Future[torch.Tensor]]] = []
        if not has_copies or hindsight:
            jobs += self._start(self._evaluator.jobs(delivery, shared, span, held, hindsight))
        if adaptation is not None:
            for _, rows in self.block.shards:
                jobs += self._start(
                    partial(self._evaluate_adapted, delivery, copied, span, adaptation, model, some + rows[0])
                    for model, some in pieces_of_clients(held[rows], self.networks.values)
                )
        elif own is not None:
            others = held & (np.arange(held.shape[1]) != own.model)
            jobs += self._start(self._evaluator.jobs(delivery, copied, span, others, hindsight=False))
            pieces_of_own = own.pieces(held[:, own.model])
            outputs = self._start(partial(own.outputs, rows, span) for rows in pieces_of_own)
            own_outputs = [(own.model, *each) for each in zip(pieces_of_own, outputs, strict=True)]
        if past is not None:
            shards = [rows for _, rows in self.block.shards]
            jobs += self._start(partial(self._evaluator.evaluate_past, delivery, past, rows) for rows in shards)

        def finish() -> Evaluation:
            for job in jobs:
                job.result()
            # After the shared models: those of a stack are written together, this one as not evaluated.
            for model, rows, outputs in own_outputs:
                self._evaluator.add(delivery, copied, span, model, rows, outputs.result())
            delivery.finish()
            builders = ([shared] if not has_copies or hindsight else []) + ([copied] if has_copies else [])
            first, last = builders[0], builders[-1]
            client_losses = np.where(held[:, None], last.losses, first.losses)
            client_scores, prediction_losses = last.client_scores()
            return Evaluation(
                scores=client_scores,
                prediction_losses=prediction_losses,
                client_losses=client_losses,
                losses=first.losses,
                model_scores=first.model_scores,
                outputs=None if past is None else past.joined(first.outputs),
            )

        return Pending(finish)

    def update(
        self,
        window: Window,
        update_weight: Floats,
        local: LocalUpdate,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> Pending[ShardUpdates]:
        if not tunes_pool(local, self.samples.task):
            started = self._start_updates(Part(window, update_weight, offset=offset), local)
            return Pending(partial(sum_by_shard, started, self.block.numbers))
        pools = self._pools.start(window, update_weight, prediction_weights, offset, self._start)

        def finish() -> ShardUpdates:
            part, broken = pools.result()
            updates = self._start_updates(part, local)
            summed = sum_by_shard(updates, self.block.numbers)
            return ShardUpdates(summed.shards, sorted(broken + summed.left_out))

        return Pending(finish)

    def _start_updates(self, part: Part, local: LocalUpdate) -> list[tuple[int, Future[Summed]]]:
        jobs = list(self._updater.jobs(part, local))
        started = self._start(job for _, job in jobs)
        return [(shard, future) for (shard, _), future in zip(jobs, started, strict=True)]

    def combine(
        self,
        parts: Sequence[tuple[Window, Floats]],
        local: LocalUpdate,
        prediction_weights: Floats,
        combine: Combine,
        offset: Floats | None = None,
    ) -> Pending[Summed]:
        jobs = self._by_client.jobs
        if not tunes_pool(local, self.samples.task):
            whole = [Part(window, weights, offset=offset) for window, weights in parts]
            return Pending(partial(by_model, self._start(jobs(whole, local, combine))))
        started = [self._pools.start(*part, prediction_weights, offset, self._start) for part in parts]

        def finish() -> Summed:
            found = [each.result() for each in started]
            summed = by_model(self._start(jobs([part for part, _ in found], local, combine)))
            return replace(
                summed, left_out=sorted([*(pair for _, broken in found for pair in broken), *summed.left_out])
            )

        return Pending(finish)

    def sizes(self, updates: Updates, directions: Updates) -> tuple[Floats, Floats, Floats]:
        return sizes_of(updates, directions, self.networks.parameters, self.networks.trainable)

    def apply(self, directions: Updates, step: Floats) -> None:
        with torch.no_grad():
            for model, direction in directions.items():
                parameters: list[torch.Tensor] = [self.networks.parameters[model][name] for name in direction]
                torch._foreach_add_(parameters, list(direction.values()), alpha=float(step[model]))

    def state(self, model: int) -> Tensors:
        return self.networks.state(model)

    def load_state(self, model: int, tensors: Tensors) -> None:
        self.networks.load_state(model, tensors)

    def _evaluate_adapted(
        self,
        delivery: Delivery,
        builder: EvaluationBuilder,
        span: tuple[int, int],
        adaptation: Adaptation,
        model: int,
        rows: Integers,
    ) -> None:
        module, start = self._scratch.own_copies(model, rows.size)
        past = self.samples.of(rows, adaptation.window.first, adaptation.window.stop)
        adapted = personal.adapt(module, start, *past, adaptation.rate, self.samples.task)
        with torch.no_grad():
            output = personal.outputs(module, adapted, self.samples.of(rows, *span)[0])
        self._evaluator.add(delivery, builder, span, model, rows, output)

    def _start(self, tasks: Iterable[Callable[[], T]]) -> list[Future[T]]:
        return [done(task) if self._pool is None else self._pool.submit(task) for task in tasks]
