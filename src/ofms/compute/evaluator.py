"""Outputs, losses and scores of shared models, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch

from ofms.compute.devices import Delivery
from ofms.compute.evaluation import EvaluationBuilder, PastOutputs
from ofms.compute.networks import Networks
from ofms.compute.samples import Samples
from ofms.compute.scratch import Scratch
from ofms.compute.shards import Block
from ofms.compute.stacked import Stack
from ofms.compute.tasks import sample_losses
from ofms.core.typing import Flags, Integers

# Models per batched product, or more if their samples are few.
_MODELS_AT_ONCE, _SAMPLES_AT_ONCE = 5, 250
# Past samples of all models of a stack together, beyond which models are evaluated one by one.
_PAST_AT_ONCE = 8192


class Evaluator:
    """Split the evaluation of shared models into jobs that depend on the shards alone."""

    def __init__(self, networks: Networks, samples: Samples, scratch: Scratch, block: Block) -> None:
        self.networks, self.samples, self.scratch, self.block = networks, samples, scratch, block
        self._stack_parts: dict[int, list[Stack]] = {}

    def jobs(
        self, delivery: Delivery, builder: EvaluationBuilder, span: tuple[int, int], held: Flags, hindsight: bool
    ) -> Iterable[Callable[[], None]]:
        """Evaluate the [N, K] held models on the samples of rounds `span`; with `hindsight`, all models."""
        for _, rows in self.block.shards:
            clients = slice(int(rows[0]), int(rows[-1]) + 1)
            for part in self._parts(rows.size * (span[1] - span[0])):
                wanted = held[clients, part.models] | hindsight
                yield partial(self._evaluate_stack, delivery, builder, span, part, rows, wanted)
            for model in self.networks.single:
                yield partial(self._evaluate_single, delivery, builder, span, model, rows, held[rows, model], hindsight)

    def _parts(self, samples: int) -> list[Stack]:
        """The stacked networks in parts that are evaluated at once on so many samples."""
        size = max(_MODELS_AT_ONCE, _SAMPLES_AT_ONCE // samples)
        if size not in self._stack_parts:
            self._stack_parts[size] = [part for stack in self.networks.stacks for part in stack.parts(size)]
        return self._stack_parts[size]

    def _evaluate_stack(
        self,
        delivery: Delivery,
        builder: EvaluationBuilder,
        span: tuple[int, int],
        stack: Stack,
        rows: Integers,
        wanted: Flags,
    ) -> None:
        """Evaluate all samples of a shard: a batched product costs less than selecting those that each model needs."""
        clients = slice(int(rows[0]), int(rows[-1]) + 1)
        x, y = self.samples.x[clients, span[0] : span[1]], self.samples.y[clients, span[0] : span[1]]
        with torch.inference_mode():
            outputs = stack.outputs(x.flatten(0, 1), self.scratch.workspace("evaluate"))
            losses = sample_losses(outputs.flatten(0, 1), y.flatten().repeat(len(stack.models)), self.samples.task)
        outputs = outputs.reshape(len(stack.models), *y.shape, -1).permute(1, 2, 0, 3)
        losses = losses.reshape(len(stack.models), *y.shape).permute(1, 2, 0)
        delivery.give(partial(builder.add, stack.models, rows, wanted), outputs, losses)

    def _evaluate_single(
        self,
        delivery: Delivery,
        builder: EvaluationBuilder,
        span: tuple[int, int],
        model: int,
        rows: Integers,
        held: Flags,
        hindsight: bool,
    ) -> None:
        """Evaluate clients that hold the model in a separate batch, so that losses do not depend on `hindsight`."""
        for wanted in (held, ~held & hindsight):
            some = rows[wanted]
            if some.size:
                with torch.inference_mode():
                    x, _ = self.samples.of(some, *span)
                    module = self.networks.modules[model]
                    output = torch.cat([module(part) for part in self.samples.pieces(x.flatten(0, 1))])
                    self.add(delivery, builder, span, model, some, output.unflatten(0, x.shape[:2]))

    def evaluate_past(self, delivery: Delivery, past: PastOutputs, rows: Integers) -> None:
        """Evaluate models on the past samples of a shard's clients that did not hold them then."""
        wanted = [past.wanted(model, rows) for model in range(len(self.networks))]
        one_by_one = [model for model in self.networks.single if wanted[model][0].size]
        with torch.inference_mode():
            for stack in self.networks.stacks:
                used = [position for position, model in enumerate(stack.models) if wanted[model][0].size]
                most = max((wanted[stack.models[position]][0].size for position in used), default=0)
                if len(used) * most > _PAST_AT_ONCE:
                    one_by_one += [stack.models[position] for position in used]
                elif used:
                    self._evaluate_past_stack(delivery, past, stack.some(used), wanted, most)
            for model in one_by_one:
                x = self.samples.at(*wanted[model])
                module = self.networks.modules[model]
                output = torch.cat([module(part) for part in self.samples.pieces(x)])
                delivery.give(partial(past.add, model, *wanted[model]), output)

    def _evaluate_past_stack(
        self, delivery: Delivery, past: PastOutputs, stack: Stack, wanted: list[tuple[Integers, Integers]], most: int
    ) -> None:
        """Small networks together; the samples of each are padded with its first one."""
        clients, rounds = np.zeros((2, len(stack.models), most), dtype=np.int64)
        for place, model in enumerate(stack.models):
            for padded, own in zip((clients[place], rounds[place]), wanted[model], strict=True):
                padded[:] = own[0]
                padded[: own.size] = own
        outputs = stack.outputs_of(self.samples.at(clients, rounds), self.scratch.workspace("evaluate"))
        for place, model in enumerate(stack.models):
            delivery.give(partial(past.add, model, *wanted[model]), outputs[place, : wanted[model][0].size])

    def add(
        self,
        delivery: Delivery,
        builder: EvaluationBuilder,
        span: tuple[int, int],
        model: int,
        rows: Integers,
        output: torch.Tensor,
    ) -> None:
        """Add [m, n, C] outputs of a model for some clients."""
        targets = self.samples.of(rows, *span)[1]
        losses = sample_losses(output.flatten(0, 1), targets.flatten(), self.samples.task).reshape(targets.shape)
        wanted = np.ones((rows.size, 1), dtype=np.bool_)
        delivery.give(partial(builder.add, [model], rows, wanted), output[:, :, None], losses[:, :, None])
