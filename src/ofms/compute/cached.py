"""Compute of a run that never changes the dictionary: all outputs are computed once and kept on disk.

A round then only looks them up. Outputs of a network depend in their last bits on which samples are computed together,
so the figures of such a run agree with those of a direct one up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
import torch

from ofms.compute.checks import require_fit
from ofms.compute.devices import reproducible
from ofms.compute.evaluation import EvaluationBuilder, PastOutputs
from ofms.compute.networks import Networks
from ofms.compute.output_file import make_room, output_file, read_outputs, write_outputs
from ofms.compute.outputs import ModelOutputs
from ofms.compute.protocol import Adaptation, ClientCopies, Combine, Evaluation, Pending, ShardUpdates, Summed, Tensors
from ofms.compute.samples import Samples, to_array
from ofms.compute.shards import Block
from ofms.compute.tasks import sample_losses
from ofms.core.errors import InvalidInput
from ofms.core.pooling import Pooling
from ofms.core.schedule import Window
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.data.folder import cache_folder
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.models.speed import one_thread_per_worker
from ofms.plugins import loaded_source_key
from ofms.policies.local_updates import LocalUpdate
from ofms.storage.locks import waiting_lock

# Outputs of one stream that are larger are not cached; all cached outputs together take no more.
MOST_BYTES = 4 * 2**30
_FORMAT = "ofms-outputs/1"
_SAMPLES_CHECKED = 8
_TOLERANCE = 1e-3


class CachedCompute:
    """`Compute` on cached outputs.

    Parameters
    ----------
    outputs
        [T, N, K, C] outputs of all models on all samples.
    """

    def __init__(self, dictionary: Dictionary, stream: Stream, outputs: AnyArray) -> None:
        # A plain view: slicing a `memmap` costs more than reading a round from it.
        self.dictionary, self.models, self.outputs = dictionary, dictionary.models, np.asarray(outputs)
        self.task, self.targets, self.shards = stream.task, stream.y, 1
        self.like = torch.from_numpy(np.empty(0, outputs.dtype))
        self.dtype = self.like.dtype
        kind = torch.int64 if stream.task == "classification" else self.dtype
        self._y = torch.from_numpy(np.ascontiguousarray(stream.y)).to(kind)
        # The losses of a round are so few that more threads would only wait for each other.
        self._threads = one_thread_per_worker()

    def of_block(self, stream: Stream, block: Block) -> CachedCompute:
        """For the clients of a block of the stream alone."""
        found = CachedCompute(self.dictionary, stream.rows(block.clients), self.outputs[:, slice(*block.clients)])
        found.shards = len(block.bounds) - 1
        return found

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.__exit__(None, None, None)

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
        if adaptation is not None or own is not None:
            raise RuntimeError("adapted copies have other outputs than those cached")
        targets = self.targets[:, span[0] : span[1]]
        builder = EvaluationBuilder(
            targets, prediction_weights, self.task, pooling, None if late is None else held, offset
        )

        def finish() -> Evaluation:
            outputs, losses = self._outputs_and_losses(*span)
            clients, models = np.arange(held.shape[0]), list(range(held.shape[1]))
            builder.add(models, clients, held | hindsight, outputs, losses)
            client_scores, prediction_losses = builder.client_scores()
            return Evaluation(
                scores=client_scores,
                prediction_losses=prediction_losses,
                client_losses=builder.losses,
                losses=builder.losses,
                model_scores=builder.model_scores,
                outputs=None if late is None else self._with_past(span, np.where(held, late, 0), builder.outputs),
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
        raise RuntimeError("cached outputs are of a dictionary that does not change")

    def combine(
        self,
        parts: Sequence[tuple[Window, Floats]],
        local: LocalUpdate,
        prediction_weights: Floats,
        combine: Combine,
        offset: Floats | None = None,
    ) -> Pending[Summed]:
        raise RuntimeError("cached outputs are of a dictionary that does not change")

    def sizes(self, updates: dict[int, Tensors], directions: dict[int, Tensors]) -> tuple[Floats, Floats, Floats]:
        raise RuntimeError("cached outputs are of a dictionary that does not change")

    def apply(self, directions: dict[int, Tensors], step: Floats) -> None:
        raise RuntimeError("cached outputs are of a dictionary that does not change")

    def state(self, model: int) -> Tensors:
        tensors = self.models[model].tensors
        return {
            name: tensor.detach().to("cpu", self.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
            for name, tensor in tensors.items()
        }

    def load_state(self, model: int, tensors: Tensors) -> None:
        """Accept only the dictionary's own parameters, as in the checkpoint of such a run."""
        own = self.state(model)
        if own.keys() != tensors.keys() or not all(torch.equal(own[name], tensors[name]) for name in own):
            raise ValueError(f"{self.models[model].name} has other parameters")

    def _with_past(self, span: tuple[int, int], late: Integers, current: AnyArray) -> AnyArray:
        """[N, L, K, C] outputs on the last [N, K] `late` samples before the span, followed by the current ones."""
        past = PastOutputs(late, span)
        for model in range(len(self.models)):
            rows, rounds = past.wanted(model)
            past.add(model, rows, rounds, self.outputs[rounds, rows, model])
        return past.joined(current)

    def _outputs_and_losses(self, first: int, stop: int) -> tuple[AnyArray, AnyArray]:
        """[N, n, K, C] outputs and [N, n, K] losses of all models in some rounds."""
        # Copied: the mapped file is read-only.
        outputs = np.array(self.outputs[first:stop].swapaxes(0, 1), order="C")
        targets = self._y[:, first:stop, None].expand(outputs.shape[:3])
        losses = sample_losses(torch.from_numpy(outputs).flatten(0, 2), targets.flatten(), self.task)
        return outputs, to_array(losses.reshape(outputs.shape[:3]))


def make_cached_compute(
    dictionary: Dictionary,
    stream: Stream,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: bool = False,
) -> CachedCompute | None:
    """A compute on the outputs in the user's cache, computed first if they are missing.

    None if they cannot be cached: they exceed `MOST_BYTES`, or the cache folder cannot be written to.
    """
    if workers is not None and workers < 1:
        raise InvalidInput("workers", workers, "give at least 1")
    clients = np.linspace(0, stream.clients - 1, _SAMPLES_CHECKED, dtype=np.int64)
    rounds = np.linspace(0, stream.rounds - 1, _SAMPLES_CHECKED, dtype=np.int64)
    place = torch.device(device)
    with one_thread_per_worker(), reproducible(place):
        require_fit(dictionary, stream)
        found = ModelOutputs(Networks(dictionary, dtype, place), Samples(stream, dtype, place))
        some = found.of(clients, rounds)
    shape, size = (stream.rounds, stream.clients, *some.shape[1:]), some[0].nbytes * stream.clients * stream.rounds
    if size > MOST_BYTES:
        return None
    key, folder = _key(dictionary, stream, dtype, place), cache_folder() / "outputs"

    def read() -> AnyArray | None:
        outputs = read_outputs(folder, key)
        return outputs if outputs is not None and _agree(outputs[rounds, clients], some) else None

    try:
        outputs = read()
        if outputs is None:
            folder.mkdir(parents=True, exist_ok=True)
            with waiting_lock(output_file(folder, key)):
                outputs = read()  # Written by another process in the meantime.
                if outputs is None:
                    make_room(folder, size, MOST_BYTES)
                    blocks = found.blocks(workers or os.cpu_count() or 1, progress=progress)
                    with reproducible(place):
                        write_outputs(folder, key, shape, blocks, some.dtype)
                    outputs = read()
    except OSError:
        return None
    return None if outputs is None else CachedCompute(dictionary, stream, outputs)


def _key(dictionary: Dictionary, stream: Stream, dtype: torch.dtype, device: torch.device) -> bytes:
    """Everything that determines the outputs; networks with the same parameters may still compute something else."""
    networks = [repr(model.module) for model in dictionary.models]
    accelerator = [] if device.type == "cpu" else [device.type]
    code = loaded_source_key(model.architecture for model in dictionary.models)
    parts = [_FORMAT, dictionary.revision(), stream.fingerprint(), str(dtype), networks, *accelerator, *code]
    return msgspec.json.encode(parts)


def _agree(one: AnyArray, other: AnyArray) -> bool:
    """Whether outputs agree up to rounding; otherwise the code of a network has changed."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    finite = np.abs(other[np.isfinite(other)])
    scale = float(finite.max()) if finite.size else 0.0
    return np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
