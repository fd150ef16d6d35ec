"""Handwritten digits of 8×8 pixels, included in scikit-learn: no download.

Models are pre-trained on one half of the samples; clients see the other half, drawn with replacement.
Client i sees mostly the digit i mod 10.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ofms.core.errors import InvalidInput
from ofms.data.drift import Drift, drifting, next_classes, rotating
from ofms.data.partition import biased_sample, majority_streams, random_generator
from ofms.data.stream import Stream, Task, TrainingSet

_IMAGE = (8, 8)
_MAJORITY = 0.775
_OTHERS_IN_TRAINING = 4
_STREAM, _TRAINING = 1, 2


class Digits:
    """The dataset."""

    name = "digits"
    task: Task = "classification"
    summary = "1,797 handwritten digits of 8×8 pixels, included in scikit-learn"

    def fetch(self) -> None:
        """Nothing to download: scikit-learn includes it."""

    def check(self) -> str:
        images, _ = _load()
        return f"digits: {len(images):,} images, included in scikit-learn"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        images, labels = _load()
        images, labels = images[1::2], labels[1::2]
        drawn = majority_streams(
            labels, clients=clients, rounds=rounds, share=_MAJORITY, generator=random_generator(seed, _STREAM)
        )
        return Stream(images[drawn], labels[drawn], self.task)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        if drift == "rotate":
            return rotating(self.stream(clients=clients, rounds=rounds, seed=seed), image=_IMAGE)
        concepts = next_classes(clients)
        sources = self.stream(clients=int(concepts.max()) + 1, rounds=rounds, seed=seed)
        return drifting(sources, concepts, drift, seed=seed)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        images, labels = _load()
        images, labels = images[0::2], labels[0::2]
        generator = random_generator(seed, _TRAINING)
        sets = []
        for digit in range(10):
            chosen = biased_sample(
                labels, own=digit, own_count=len(labels), other_count=_OTHERS_IN_TRAINING, generator=generator
            )
            sets.append(TrainingSet(f"class{digit}", images[chosen], labels[chosen]))
        return sets


def _load() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise InvalidInput("dataset", "digits", "it requires scikit-learn: pip install 'ofms[experiments]'")
    # Its file: importing scikit-learn takes longer than a short run.
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",") if path.exists() else _load_with_scikit_learn()
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)


def _load_with_scikit_learn() -> npt.NDArray[np.float64]:
    from sklearn.datasets import load_digits

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])


dataset = Digits()
