"""Each client's own update of a model, which robust aggregation needs: one backward pass for all does not form them.

The updates of a model are rows of one array, in memory, or in a temporary file if they are many.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from ofms.compute import personal
from ofms.compute.networks import Networks
from ofms.compute.parts import Part
from ofms.compute.protocol import Combine, Summed, Tensors
from ofms.compute.samples import Samples, to_array
from ofms.compute.scratch import Scratch
from ofms.compute.updates import norm_of, pieces_of_clients
from ofms.core.typing import AnyArray, Integers
from ofms.policies.local_updates import GradientStep, LocalUpdate

# Numbers of one model's updates that are kept in memory: 256 MiB of float32.
_VALUES_IN_MEMORY = 2**26


class UpdatesByClient:
    """Split the work by model; the results do not depend on the number of workers."""

    def __init__(self, networks: Networks, samples: Samples, scratch: Scratch) -> None:
        self.networks, self.samples, self.scratch = networks, samples, scratch

    def jobs(self, parts: Sequence[Part], local: LocalUpdate, combine: Combine) -> Iterable[Callable[[], Summed]]:
        """A job for each model that clients fine-tune."""
        used = np.any([part.update_weight.any(axis=0) for part in parts], axis=0)
        for model in np.flatnonzero(used).tolist():
            yield partial(self._combined, model, parts, local, combine)

    def _combined(self, model: int, parts: Sequence[Part], local: LocalUpdate, combine: Combine) -> Summed:
        everyone = np.sort(np.concatenate([np.flatnonzero(part.update_weight[:, model]) for part in parts]))
        leaves = self.networks.leaves(model)
        width = sum(leaf.numel() for leaf in leaves)
        with _room((everyone.size, width), to_array(leaves[0][:0]).dtype) as rows:
            finite = np.ones(everyone.size, dtype=np.bool_)
            for part in parts:
                for clients in self._pieces(part, model):
                    places = np.searchsorted(everyone, clients)
                    rows[places] = found = self._updates(model, clients, part, local)
                    finite[places] = np.isfinite(found).all(axis=1)
            left_out = [(client, model) for client in everyone[~finite].tolist()]
            if not finite.any():
                return Summed({}, left_out)
            sound = rows if finite.all() else rows[finite]
            whole = torch.from_numpy(combine(model, everyone[finite], sound, norm_of(leaves)))
        shapes = [leaf.shape for leaf in leaves]
        pieces = whole.to(self.samples.device).split([leaf.numel() for leaf in leaves])
        names = self.networks.trainable[model]
        update = {name: each.view(shape) for name, each, shape in zip(names, pieces, shapes, strict=True)}
        return Summed({model: update}, left_out)

    def _pieces(self, part: Part, model: int) -> Iterator[Integers]:
        wanted = np.zeros_like(part.update_weight, dtype=np.bool_)
        wanted[:, model] = part.update_weight[:, model] > 0
        return (rows for _, rows in pieces_of_clients(wanted, self.networks.values))

    def _updates(self, model: int, rows: Integers, part: Part, local: LocalUpdate) -> AnyArray:
        """[M, P] the weighted updates of some clients."""
        module, start = self.scratch.own_copies(model, rows.size)
        x, y = self.samples.of(rows, part.window.first, part.window.stop)
        weights = part.update_weight[rows, model]
        if isinstance(local, GradientStep):
            of_samples = self.samples.weights(-local.rate * np.outer(weights, part.window.weights))
            given = None if part.residuals is None else self.samples.weights(part.residuals[rows])
            shared = {name: tensor[0] for name, tensor in start.items()}
            offset = None if part.offset is None else self.samples.weights(part.offset[rows])
            found = personal.gradients(module, shared, x, y, of_samples, given, offset, self.samples.task)
            return _flat(found)
        after = personal.train(module, start, x, y, local, self.samples.task)
        changes = _flat({name: after[name] - start[name] for name in after})
        weighted: AnyArray = changes * weights.astype(changes.dtype)[:, None]
        return weighted


def _flat(tensors: Tensors) -> AnyArray:
    """[M, P] of tensors with a leading client axis."""
    return to_array(torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1))


@contextmanager
def _room(shape: tuple[int, int], dtype: np.dtype[np.generic]) -> Iterator[AnyArray]:
    """An array of a shape: in memory, or in a temporary file that is removed afterwards."""
    if shape[0] * shape[1] <= _VALUES_IN_MEMORY:
        yield np.empty(shape, dtype=dtype)
        return
    with tempfile.TemporaryFile() as file:
        yield np.memmap(file, dtype=dtype, mode="w+", shape=shape)
