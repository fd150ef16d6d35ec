"""Losses and scores of clients from model outputs, which may arrive in any order."""

from __future__ import annotations

import numpy as np

from ofms.compute.tasks import scores, softmax
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.models.dictionary import Task


class EvaluationBuilder:
    """Collect the outputs of models on [N, n] samples.

    Only the outputs of predicting models are kept until the end: predictions are mixed in the order of the models, so
    that they do not depend on which worker finishes first.
    """

    def __init__(self, targets: AnyArray, prediction_weights: Floats, task: Task) -> None:
        self.targets, self.prediction_weights, self.task = targets, prediction_weights, task
        shape = (*targets.shape, prediction_weights.shape[1])
        self.losses = np.full(shape, np.nan)
        self.model_scores = np.full(shape, np.nan)
        self._predicting: dict[int, list[tuple[Integers, AnyArray]]] = {}

    def add(self, models: list[int], rows: Integers, wanted: Flags, outputs: AnyArray, losses: AnyArray) -> None:
        """Add [m, n, M, C] outputs and [m, n, M] losses of M models for m clients, as far as [m, M] `wanted`."""
        place = np.ix_(rows, np.arange(self.targets.shape[1]), np.array(models))
        self.losses[place] = np.where(wanted[:, None], losses, np.nan)
        each = scores(outputs, self.targets[rows][..., None], self.task)
        known = wanted[:, None] & np.isfinite(outputs[..., 0])
        self.model_scores[place] = np.where(known, each, np.nan)
        for column, model in enumerate(models):
            predicting = wanted[:, column] & (self.prediction_weights[rows, model] > 0)
            if predicting.any():
                part = (rows[predicting], outputs[predicting, :, column].astype(np.float64))
                self._predicting.setdefault(model, []).append(part)

    def client_scores(self) -> Floats:
        """[N, n] the scores of the mixed predictions: averages of values, or of class probabilities."""
        parts = [(model, *part) for model in sorted(self._predicting) for part in self._predicting[model]]
        mixed = np.zeros((*self.targets.shape, parts[0][2].shape[-1] if parts else 1))
        for model, rows, outputs in parts:
            values = softmax(outputs) if self.task == "classification" else outputs
            mixed[rows] += self.prediction_weights[rows, model][:, None, None] * values
        return scores(mixed, self.targets, self.task)
