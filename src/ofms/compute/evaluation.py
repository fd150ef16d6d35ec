"""Losses and scores of clients from model outputs, which may arrive in any order."""

from __future__ import annotations

import threading

import numpy as np

from ofms.compute.losses import scores, softmax, without_overflow
from ofms.core.pooling import (
    LEAST_PROBABILITY,
    Pool,
    Pooling,
    pool_gradient,
    pool_loss,
    poolable,
    with_offset,
    within_range,
)
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.models.index import Task


class EvaluationBuilder:
    """Collect the outputs of models on [N, n] samples.

    Only the outputs of predicting models and those of [N, K] `outputs_of` are kept until the end: predictions are
    mixed in the order of the models, so that they do not depend on which worker finishes first. The [N, C] `offset` is
    added to them.
    """

    def __init__(
        self,
        targets: AnyArray,
        prediction_weights: Floats,
        task: Task,
        pooling: Pooling = "mean",
        outputs_of: Flags | None = None,
        offset: Floats | None = None,
    ) -> None:
        self.targets, self.prediction_weights, self.task, self.pooling = targets, prediction_weights, task, pooling
        self._offset = offset
        shape = (*targets.shape, prediction_weights.shape[1])
        self.losses = np.full(shape, np.nan)
        self.model_scores = np.full(shape, np.nan)
        self.outputs: AnyArray = np.zeros(0)
        self._outputs_of, self._lock = outputs_of, threading.Lock()
        self._predicting: dict[int, list[tuple[Integers, AnyArray]]] = {}

    def add(self, models: list[int], rows: Integers, wanted: Flags, outputs: AnyArray, losses: AnyArray) -> None:
        """Add [m, n, M, C] outputs and [m, n, M] losses of M models for m clients, as far as [m, M] `wanted`."""
        place = np.ix_(rows, np.arange(self.targets.shape[1]), np.array(models))
        targets, found = self.targets[rows][..., None], outputs
        outputs = within_range(found)
        self.losses[place] = np.where(wanted[:, None], without_overflow(losses, outputs, targets, self.task), np.nan)
        each = scores(outputs, targets, self.task)
        if outputs is not found:
            each = np.where(np.isfinite(found).all(axis=-1), each, np.nan)
        self.model_scores[place] = np.where(wanted[:, None], each, np.nan)
        if self._outputs_of is not None:
            asked = wanted & self._outputs_of[np.ix_(rows, np.array(models))]
            whole = self._all_outputs(outputs.shape[-1], outputs.dtype)
            whole[place] = np.where(asked[:, None, :, None], outputs, np.nan)
        for column, model in enumerate(models):
            predicting = wanted[:, column] & (self.prediction_weights[rows, model] > 0)
            if predicting.any():
                part = (rows[predicting], outputs[predicting, :, column].astype(np.float64))
                self._predicting.setdefault(model, []).append(part)

    def add_one(self, client: int, model: int, outputs: AnyArray, losses: AnyArray) -> None:
        """Add [n, C] outputs and [n] losses of one client and model."""
        one = np.ones((1, 1), dtype=np.bool_)
        self.add([model], np.array([client]), one, outputs[None, :, None], losses[None, :, None])

    def client_scores(self) -> tuple[Floats, Floats]:
        """[N, n] the scores and the losses of the mixed predictions."""
        parts = [(model, *part) for model in sorted(self._predicting) for part in self._predicting[model]]
        pool = Pool((*self.targets.shape, parts[0][2].shape[-1] if parts else 1))
        for model, rows, outputs in parts:
            pool.add(rows, self.prediction_weights[rows, model], self._mixable(outputs))
        mixed = pool.value()
        if self.task == "classification" and self.pooling == "mean":
            mixed = np.log(np.maximum(mixed, LEAST_PROBABILITY))
        mixed = with_offset(mixed, self._offset)
        return scores(mixed, self.targets, self.task), pool_loss(mixed, self.targets)

    def _mixable(self, outputs: AnyArray) -> AnyArray:
        if self.task == "regression":
            return outputs
        return poolable(outputs) if self.pooling == "log" else softmax(outputs)

    def _all_outputs(self, width: int, dtype: np.dtype[np.generic]) -> AnyArray:
        with self._lock:
            if self.outputs.ndim == 1:
                self.outputs = np.full((*self.losses.shape, width), np.nan, dtype=dtype)
            return self.outputs


class PastOutputs:
    """Outputs of models on samples before a span: of the last [N, K] `late` ones."""

    def __init__(self, late: Integers, span: tuple[int, int]) -> None:
        self.late, self.first = late, span[0]
        self.length = int(late.max(initial=0))
        self._parts: list[tuple[int, Integers, Integers, AnyArray]] = []

    def wanted(self, model: int, among: Integers | None = None) -> tuple[Integers, Integers]:
        """Clients, of all or `among` some successive ones, and rounds on which a model is to be evaluated."""
        start, late = (0, self.late) if among is None else (among[0], self.late[among])
        rows, back = np.nonzero(np.arange(1, self.length + 1) <= late[:, model, None])
        return rows + start, self.first - 1 - back

    def add(self, model: int, rows: Integers, rounds: Integers, outputs: AnyArray) -> None:
        """Add [M, C] outputs of M pairs of client and round."""
        self._parts.append((model, rows, rounds, within_range(outputs)))

    def joined(self, current: AnyArray) -> AnyArray:
        """[N, L, K, C] the past outputs, followed by those of the span."""
        clients, _, models, width = current.shape
        past = np.full((clients, self.length, models, width), np.nan, dtype=current.dtype)
        for model, rows, rounds, outputs in self._parts:
            past[rows, rounds - self.first + self.length, model] = outputs
        return np.concatenate([past, current], axis=1)


class PoolResiduals:
    """The gradient of the clients' pools in their outputs, on the [m, n] samples that m clients fine-tune on.

    [m, C] `offset` is added to the pools.
    """

    def __init__(
        self, rows: Integers, prediction_weights: Floats, targets: AnyArray, offset: Floats | None = None
    ) -> None:
        self.rows, self.prediction_weights, self.targets = rows, prediction_weights, targets
        self.offset = offset
        self._outputs: dict[int, Floats] = {}
        self._broken: list[tuple[int, int]] = []

    def predicting(self) -> list[int]:
        """The models in the pools."""
        return np.flatnonzero(self.prediction_weights.any(axis=0)).tolist()

    def clients(self, model: int) -> Integers:
        """The clients in whose pool a model is."""
        return self.rows[self.prediction_weights[:, model] > 0]

    def add(self, model: int, outputs: AnyArray) -> None:
        """Add the outputs of a model for its clients."""
        found = within_range(outputs)
        if found is not outputs:
            broken = ~np.isfinite(outputs).all(axis=(1, 2))
            self._broken += [(int(client), model) for client in self.clients(model)[broken]]
        self._outputs[model] = poolable(found)

    def broken(self) -> list[tuple[int, int]]:
        """Clients and models whose outputs are not finite: they have no gradient."""
        return sorted(self._broken)

    def residuals_into(self, whole: Floats | None, clients: int) -> Floats:
        """[N, n, C] for all clients, those of these ones added; 0 for those that do not upload."""
        width = next(iter(self._outputs.values())).shape[-1]
        pool = Pool((*self.targets.shape, width))
        for model in sorted(self._outputs):
            places = self.prediction_weights[:, model] > 0
            pool.add(places, self.prediction_weights[places, model], self._outputs[model])
        if whole is None:
            whole = np.zeros((clients, *self.targets.shape[1:], width))
        whole[self.rows] = pool_gradient(with_offset(pool.value(), self.offset), self.targets)
        return whole
