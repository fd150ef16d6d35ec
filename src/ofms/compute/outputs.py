"""Outputs of all models on all samples of a stream, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from ofms.compute.networks import Networks
from ofms.compute.samples import Samples, to_array
from ofms.compute.scratch import Scratch
from ofms.compute.stacked import Stack
from ofms.core.typing import AnyArray, Integers
from ofms.models.speed import one_thread_per_worker

_MODELS_AT_ONCE = 5
# Enough for full batches; few enough that memory for a block does not grow with the stream.
_SAMPLES_PER_BLOCK = 2048
# Shorter work needs no progress bar.
_SECONDS_BEFORE_BAR = 1.0

Job = Callable[[], tuple[list[int], AnyArray]]


class ModelOutputs:
    """Outputs of the dictionary's models; they do not depend on the number of workers."""

    def __init__(self, networks: Networks, samples: Samples) -> None:
        self.networks, self.samples = networks, samples
        self._parts = [part for stack in networks.stacks for part in stack.parts(_MODELS_AT_ONCE)]
        self._scratch = Scratch(networks, samples.device)

    def of(self, clients: Integers, rounds: Integers) -> AnyArray:
        """[m, K, C] outputs of all models on m samples, given by client and round."""
        x = self.samples.at(clients, rounds)
        return _joined([job() for job in self._jobs(x)], len(self.networks))

    def blocks(self, workers: int, *, progress: bool) -> Iterator[AnyArray]:
        """[n, N, K, C] outputs on the samples of consecutive rounds."""
        clients, rounds = self.samples.y.shape
        step = max(1, _SAMPLES_PER_BLOCK // clients)
        with (
            tqdm(
                total=len(self.networks) * clients * rounds,
                desc="outputs of all models",
                unit="sample",
                unit_scale=True,
                delay=_SECONDS_BEFORE_BAR,
                disable=None if progress else True,
            ) as bar,
            one_thread_per_worker(),
            # An accelerator works through one queue.
            ThreadPoolExecutor(workers if self.samples.device.type == "cpu" else 1) as pool,
        ):
            try:
                for first in range(0, rounds, step):
                    x = self.samples.x[:, first : first + step].transpose(0, 1)
                    outputs = []
                    for job in [pool.submit(job) for job in self._jobs(x.flatten(0, 1))]:
                        outputs.append(job.result())
                        bar.update(len(outputs[-1][0]) * x.shape[0] * clients)
                    joined = _joined(outputs, len(self.networks))
                    yield joined.reshape(x.shape[0], clients, *joined.shape[1:])
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _jobs(self, x: torch.Tensor) -> Iterable[Job]:
        for part in self._parts:
            yield partial(self._stack_outputs, part, x)
        for model in self.networks.single:
            yield partial(self._single_outputs, model, x)

    def _stack_outputs(self, stack: Stack, x: torch.Tensor) -> tuple[list[int], AnyArray]:
        workspace = self._scratch.workspace("evaluate")
        with torch.inference_mode():
            outputs = torch.cat([stack.outputs(part, workspace) for part in self.samples.pieces(x)], dim=1)
        return stack.models, to_array(outputs.transpose(0, 1))

    def _single_outputs(self, model: int, x: torch.Tensor) -> tuple[list[int], AnyArray]:
        module = self.networks.modules[model]
        with torch.inference_mode():
            outputs = torch.cat([module(part) for part in self.samples.pieces(x)])
        return [model], to_array(outputs.unsqueeze(1))


def _joined(outputs: list[tuple[list[int], AnyArray]], models: int) -> AnyArray:
    """[m, K, C] from the [m, M, C] outputs of groups of models."""
    first = outputs[0][1]
    joined: AnyArray = np.empty((first.shape[0], models, first.shape[2]), first.dtype)
    for some, values in outputs:
        joined[:, some] = values
    return joined
