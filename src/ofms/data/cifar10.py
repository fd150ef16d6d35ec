"""CIFAR-10: 60,000 colour images of 32×32 pixels in ten classes.

The paper's partition: the 10,000 test images go to 50 clients, five per class, each with 155 images of its class and 5
of each other class. Models are pre-trained on the 5,000 images of one class and 500 of each other.

References
----------
A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

import numpy as np

from ofms.core.typing import Integers
from ofms.data.download import Archive, fetch_files
from ofms.data.drift import Drift
from ofms.data.folder import VerifiedFiles
from ofms.data.images import Pixels, image_stream, image_training_sets
from ofms.data.stream import Stream, Task, TrainingSet

_FOLDER = "cifar-10-batches-bin"
_FILES = VerifiedFiles(
    "cifar10",
    {
        f"{_FOLDER}/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        f"{_FOLDER}/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        f"{_FOLDER}/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        f"{_FOLDER}/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        f"{_FOLDER}/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        f"{_FOLDER}/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)
_ARCHIVE = Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
_PIXELS = 3 * 32 * 32


class Cifar10:
    """The dataset."""

    name = "cifar10"
    task: Task = "classification"
    summary = "60,000 colour images of 32×32 pixels in ten classes"

    def fetch(self) -> None:
        fetch_files(_FILES.folder, _FILES.md5, _FILES.require, _ARCHIVE.fetch)

    def check(self) -> str:
        _FILES.check()
        return f"cifar10: {len(_FILES.md5)} files in {_FILES.folder}"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        return _stream(clients, rounds, seed)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        return _stream(clients, rounds, seed, drift)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        images, labels = _read([f"data_batch_{number}" for number in range(1, 6)])
        return image_training_sets(images, labels, own_count=5000, other_count=500, seed=seed)


def _stream(clients: int, rounds: int, seed: int, drift: Drift | None = None) -> Stream:
    images, labels = _read(["test_batch"])
    size = {"clients": clients, "rounds": rounds}
    return image_stream(images, labels, majority=155, others=5, **size, seed=seed, name="CIFAR-10", drift=drift)


def _read(batches: list[str]) -> tuple[Pixels, Integers]:
    """Images [n, 3, 32, 32] and labels [n] of batches; a row holds the label, then the pixels channel by channel."""
    content = b"".join(_FILES.read(f"{_FOLDER}/{batch}.bin") for batch in batches)
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    return table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].astype(np.int64)


dataset = Cifar10()
