"""One model of which every client has a copy of its own, fine-tuned on its samples alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ofms.compute import personal
from ofms.compute.checks import is_finite
from ofms.compute.networks import Networks
from ofms.compute.protocol import Tensors
from ofms.compute.samples import Samples
from ofms.compute.scratch import Scratch
from ofms.compute.shards import Block
from ofms.compute.updates import pieces_of_clients
from ofms.core.schedule import Window
from ofms.core.typing import Flags, Integers
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.local_updates import GradientStep, LocalUpdate


class OwnCopies:
    """[N, ...] trainable parameters of the copies; what is not trainable is shared."""

    def __init__(
        self,
        dictionary: Dictionary,
        stream: Stream,
        model: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block: Block | None = None,
    ) -> None:
        self.model, place = model, torch.device(device)
        self._block = block or Block.of(stream.clients, 1)
        self._networks = Networks(replace(dictionary, models=(dictionary.models[model],)), dtype, place)
        self._samples = Samples(stream, dtype, place)
        self._scratch = Scratch(self._networks, place)
        _, initial = self._scratch.own_copies(0, stream.clients)
        self._initial = initial
        self._copies = {name: tensor.clone() for name, tensor in initial.items()}

    def start(self, clients: Flags) -> None:
        """Start the copies of [N] clients from the shared parameters, because the model was sent to them."""
        rows = self._rows(np.flatnonzero(clients))
        for name, tensor in self._copies.items():
            tensor[rows] = self._initial[name][rows]

    def pieces(self, clients: Flags) -> list[Integers]:
        """[N] clients in pieces whose size depends on the model alone, shard by shard."""
        return [
            rows + shard[0]
            for _, shard in self._block.shards
            for _, rows in pieces_of_clients(clients[shard, None], self._networks.values)
        ]

    def outputs(self, rows: Integers, span: tuple[int, int]) -> torch.Tensor:
        """[M, n, C] outputs of some clients' copies on their samples of rounds `span`."""
        module, _ = self._scratch.own_copies(0, rows.size)
        with torch.no_grad():
            return personal.outputs(module, self._of(rows), self._samples.of(rows, *span)[0])

    def train(self, window: Window, clients: Flags, local: LocalUpdate) -> list[tuple[int, int]]:
        """Fine-tune the copies of [N] clients on their own samples of `window`, with weight 1.

        A copy stays as it is if it would not be finite; those clients are returned, with the model.
        """
        left_out: list[tuple[int, int]] = []
        for rows in self.pieces(clients):
            module, _ = self._scratch.own_copies(0, rows.size)
            x, y = self._samples.of(rows, window.first, window.stop)
            before = self._of(rows)
            if isinstance(local, GradientStep):
                weights = self._samples.weights(window.weights)
                after = personal.descend(module, before, x, y, weights, local.rate, self._samples.task)
            else:
                after = personal.train(module, before, x, y, local, self._samples.task)
            if not is_finite(after.values()):
                finite = [is_finite(tensor[row] for tensor in after.values()) for row in range(rows.size)]
                left_out += [(int(row), self.model) for row in rows[np.logical_not(finite)]]
                kept = torch.tensor(finite, device=x.device)
                rows, after = rows[finite], {name: tensor[kept] for name, tensor in after.items()}
            for name, tensor in self._copies.items():
                tensor[self._rows(rows)] = after[name]
        return left_out

    def state(self) -> Tensors:
        """The [N, ...] parameters, in main memory."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._copies.items()}

    def load_state(self, tensors: Tensors) -> None:
        """Set the [N, ...] parameters."""
        for name, tensor in self._copies.items():
            tensor.copy_(tensors[name])

    def _of(self, rows: Integers) -> Tensors:
        return {name: tensor[self._rows(rows)] for name, tensor in self._copies.items()}

    def _rows(self, rows: Integers) -> torch.Tensor:
        return torch.from_numpy(rows).to(self._samples.device)
