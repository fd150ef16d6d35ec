"""The gradients of the loss of the clients' pools in their outputs, which are the same for all models of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from ofms.compute.devices import Delivery
from ofms.compute.evaluation import PoolResiduals
from ofms.compute.networks import Networks
from ofms.compute.parts import Part
from ofms.compute.protocol import Pending
from ofms.compute.samples import Samples
from ofms.compute.shards import Block
from ofms.core.schedule import Window
from ofms.core.typing import Floats

Start = Callable[[Iterable[Callable[[], Any]]], list[Future[Any]]]


class PoolGradients:
    """Evaluates the models that predict for clients that fine-tune for the loss of their pool."""

    def __init__(self, networks: Networks, samples: Samples, block: Block) -> None:
        self._networks, self._samples, self._block = networks, samples, block

    def start(
        self,
        window: Window,
        update_weight: Floats,
        prediction_weights: Floats,
        offset: Floats | None,
        start: Start,
    ) -> Pending[tuple[Part, list[tuple[int, int]]]]:
        """What clients fine-tune on, and the clients and models whose outputs are not finite: their weights are 0."""
        pools, jobs, delivery = [], [], Delivery(self._samples.device)
        for _, shard in self._block.shards:
            rows = shard[update_weight[shard].any(axis=1)]
            if rows.size:
                targets = self._samples.targets[rows, window.first : window.stop]
                own = None if offset is None else offset[rows]
                pool = PoolResiduals(rows, prediction_weights[rows], targets, own)
                jobs += start(partial(self._add, delivery, pool, window, model) for model in pool.predicting())
                pools.append(pool)

        def finish() -> tuple[Part, list[tuple[int, int]]]:
            for job in jobs:
                job.result()
            delivery.finish()
            residuals, weights = None, update_weight.copy()
            for pool in pools:
                residuals = pool.residuals_into(residuals, update_weight.shape[0])
            broken = [pair for pool in pools for pair in pool.broken() if weights[pair]]
            for pair in broken:
                weights[pair] = 0.0
            return Part(window, weights, residuals), broken

        return Pending(finish)

    def _add(self, delivery: Delivery, pool: PoolResiduals, window: Window, model: int) -> None:
        rows = pool.clients(model)
        with torch.inference_mode():
            x, _ = self._samples.of(rows, window.first, window.stop)
            module = self._networks.modules[model]
            output = torch.cat([module(part) for part in self._samples.pieces(x.flatten(0, 1))])
        delivery.give(partial(pool.add, model), output.unflatten(0, x.shape[:2]))
