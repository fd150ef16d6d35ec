"""The sum of the devices' updates of each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ofms.compute.updates import norm_of
from ofms.coordinator.validation import Answer, Tensors
from ofms.core.typing import Floats
from ofms.models.dictionary import Dictionary


def sum_updates(answers: Sequence[Answer]) -> dict[int, Tensors]:
    """The weighted updates of each model, summed in the order of the answers; by model."""
    summed: dict[int, Tensors] = {}
    for answer in answers:
        for model, update in answer.updates.items():
            total = summed.setdefault(model, {})
            for name, delta in update.delta.items():
                part = update.weight * delta
                total[name] = total[name] + part if name in total else part
    return dict(sorted(summed.items()))


def norms(summed: Mapping[int, Tensors], tensors: Sequence[Tensors], dictionary: Dictionary) -> tuple[Floats, Floats]:
    """[K] the norms of the summed updates, 0 where there are none, and of the parameters that they update."""
    sizes = [norm_of(summed[place].values()) if place in summed else 0.0 for place in range(len(dictionary))]
    updated = [[tensors[place][name] for name in model.trainable] for place, model in enumerate(dictionary.models)]
    return np.array(sizes), np.array([norm_of(each) for each in updated])
