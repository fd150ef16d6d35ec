"""MNIST: 70,000 handwritten digits of 28×28 pixels.

The paper's partition: the 10,000 test images go to 50 clients, five per digit, each with 133 to 140 images of its digit
and at least 5 of each other. Models are pre-trained on up to 6,000 images of one digit and 100 of each other.

References
----------
Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document recognition", Proc. IEEE, 1998.
"""

from __future__ import annotations

import numpy as np

from ofms.core.typing import AnyArray, Integers
from ofms.data.download import Archive, fetch_files
from ofms.data.drift import Drift
from ofms.data.folder import VerifiedFiles
from ofms.data.images import Pixels, image_stream, image_training_sets
from ofms.data.stream import Stream, Task, TrainingSet

_FILES = VerifiedFiles(
    "mnist",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)
# PyTorch's mirror; the original host is gone.
_HOST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_COMPRESSED_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}


class Mnist:
    """The dataset."""

    name = "mnist"
    task: Task = "classification"
    summary = "70,000 handwritten digits of 28×28 pixels"

    def fetch(self) -> None:
        fetch_files(_FILES.folder, _FILES.md5, _FILES.require, _download)

    def check(self) -> str:
        _FILES.check()
        return f"mnist: {len(_FILES.md5)} files in {_FILES.folder}"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        return _stream(clients, rounds, seed)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        return _stream(clients, rounds, seed, drift)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        images, labels = _read("train")
        return image_training_sets(images, labels, own_count=6000, other_count=100, seed=seed)


def _stream(clients: int, rounds: int, seed: int, drift: Drift | None = None) -> Stream:
    images, labels = _read("t10k")
    size = {"clients": clients, "rounds": rounds}
    return image_stream(images, labels, majority=140, others=5, **size, seed=seed, name="MNIST", drift=drift)


def _download() -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name, md5 in _COMPRESSED_MD5.items():
        contents |= Archive(f"{_HOST}{name}.gz", md5).fetch()
    return contents


def _read(part: str) -> tuple[Pixels, Integers]:
    images, labels = _read_idx(f"{part}-images-idx3-ubyte"), _read_idx(f"{part}-labels-idx1-ubyte")
    return images[:, None], labels.astype(np.int64)


def _read_idx(name: str) -> AnyArray:
    """An array in the IDX format: two zeros, the type, the number of dimensions, their sizes, the values."""
    content = _FILES.read(name)
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], dtype=">u4").tolist()
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


dataset = Mnist()
