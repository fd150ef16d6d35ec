"""The gradients of the loss of the clients' pools in their outputs, which are the same for all models of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import torch

from ofms.compute.by_client import Part
from ofms.compute.devices import Delivery
from ofms.compute.evaluation import PoolResiduals
from ofms.compute.networks import Networks
from ofms.compute.protocol import Pending
from ofms.compute.samples import Samples
from ofms.core.schedule import Window
from ofms.core.typing import Floats

Start = Callable[[Iterable[Callable[[], Any]]], list[Future[Any]]]


class PoolGradients:
    """Evaluates the models that predict for clients that fine-tune for the loss of their pool."""

    def __init__(self, networks: Networks, samples: Samples) -> None:
        self._networks, self._samples = networks, samples

    def start(
        self, window: Window, update_weight: Floats, prediction_weights: Floats, start: Start
    ) -> Pending[tuple[Part, list[tuple[int, int]]]]:
        """What clients fine-tune on, and the clients and models whose outputs are not finite: their weights are 0."""
        rows = np.flatnonzero(update_weight.any(axis=1))
        targets = self._samples.targets[rows, window.first : window.stop]
        pool = PoolResiduals(rows, prediction_weights[rows], targets)
        delivery = Delivery(self._samples.device)
        jobs = start(partial(self._add, delivery, pool, window, model) for model in pool.predicting())

        def finish() -> tuple[Part, list[tuple[int, int]]]:
            for job in jobs:
                job.result()
            delivery.finish()
            if not rows.size:
                return Part(window, update_weight), []
            residuals, weights = pool.residuals(update_weight.shape[0]), update_weight.copy()
            broken = [(client, model) for client, model in pool.broken() if weights[client, model]]
            for client, model in broken:
                weights[client, model] = 0.0
            return Part(window, weights, residuals), broken

        return Pending(finish)

    def _add(self, delivery: Delivery, pool: PoolResiduals, window: Window, model: int) -> None:
        rows = pool.clients(model)
        with torch.inference_mode():
            x, _ = self._samples.of(rows, window.first, window.stop)
            module = self._networks.modules[model]
            output = torch.cat([module(part) for part in self._samples.pieces(x.flatten(0, 1))])
        delivery.give(partial(pool.add, model), output.unflatten(0, x.shape[:2]))
