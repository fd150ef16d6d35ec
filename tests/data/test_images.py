"""Image datasets: partition among fifty clients, file formats."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.core.typing import Integers
from ofms.data import cifar10, load_dataset, mnist
from ofms.data.folder import VerifiedFiles, md5_of
from ofms.data.images import partition_classes
from ofms.data.partition import random_generator

MNIST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def labels_of(counts: list[int]) -> Integers:
    return random_generator(0, 0).permuted(np.repeat(np.arange(10), counts))


def test_the_partition_of_mnist_is_the_papers() -> None:
    """133 to 140 of a client's own digit, at least 5 of each other, every test image once."""
    labels = labels_of(MNIST_COUNTS)
    drawn = partition_classes(labels, majority=140, others=5, generator=random_generator(0, 1))
    assert drawn.shape == (50, 200)
    assert np.unique(drawn).size == 10_000
    counts = np.stack([np.bincount(labels[row], minlength=10) for row in drawn])
    own = counts[np.arange(50), np.arange(50) % 10]
    assert (own.min(), own.max()) == (133, 140)
    assert counts.min() >= 5


@settings(max_examples=30)
@given(st.lists(st.integers(-90, 90), min_size=9, max_size=9), st.integers(0, 2**32))
def test_no_image_goes_to_two_clients_with_uneven_classes(shifts: list[int], seed: int) -> None:
    counts = [1000 + shift for shift in shifts]
    counts.append(10_000 - sum(counts))
    assume(min(counts) >= 890)
    labels = labels_of(counts)
    drawn = partition_classes(labels, majority=140, others=5, generator=random_generator(seed, 1))
    assert np.unique(drawn).size == 10_000
    by_client = np.stack([np.bincount(labels[row], minlength=10) for row in drawn])
    assert by_client.min() >= 5
    own = by_client[np.arange(50), np.arange(50) % 10]
    assert all(own[client] >= min(140, (counts[client % 10] - 225) // 5) for client in range(50))


def publish(module: ModuleType, folder: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files and take them as the published ones."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    md5 = {name: md5_of(content) for name, content in contents.items()}
    monkeypatch.setattr(module, "_FILES", VerifiedFiles(folder.name, md5))


@pytest.fixture
def mnist_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test set in MNIST's format; the first two pixels of an image are its index."""
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    images = np.zeros((10_000, 28, 28), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(10_000), 256)
    contents = {
        "t10k-images-idx3-ubyte": bytes([0, 0, 8, 3]) + struct.pack(">III", *images.shape) + images.tobytes(),
        "t10k-labels-idx1-ubyte": bytes([0, 0, 8, 1])
        + struct.pack(">I", len(images))
        + labels_of(MNIST_COUNTS).astype(np.uint8).tobytes(),
    }
    publish(mnist, tmp_path / "mnist", contents, monkeypatch)
    return tmp_path / "mnist"


@pytest.mark.usefixtures("mnist_files")
def test_files_of_mnist_become_a_stream() -> None:
    stream = load_dataset("mnist").stream(clients=50, rounds=200, seed=3)
    assert stream.x.shape == (50, 200, 1, 28, 28)
    pixels = np.rint(255 * stream.x[..., 0, 0, :2]).astype(int)
    numbers = 256 * pixels[..., 0] + pixels[..., 1]
    assert (labels_of(MNIST_COUNTS)[numbers] == stream.y).all()
    few = load_dataset("mnist").stream(clients=7, rounds=20, seed=3)
    assert (few.x == stream.x[:7, :20]).all(), "a smaller stream is a part of the whole"
    with pytest.raises(InvalidInput, match=r"clients × rounds = 51 × 200: .* at most"):
        load_dataset("mnist").stream(clients=51, rounds=200, seed=0)


@pytest.mark.parametrize("damage", ["cut", "foreign", "missing", "another label"])
def test_damaged_mnist_files_are_refused_in_one_line(mnist_files: Path, damage: str) -> None:
    path = mnist_files / "t10k-images-idx3-ubyte"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "foreign":
        path.write_bytes(b"<html>not found</html>")
    elif damage == "missing":
        path.unlink()
    else:
        labels = mnist_files / "t10k-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + bytes([17]))
    with pytest.raises(InvalidInput, match=r"(No such file|its MD5 is).* 'ofms data mnist'") as refusal:
        load_dataset("mnist").stream(clients=5, rounds=5, seed=0)
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(InvalidInput):
        load_dataset("mnist").check()


def test_files_of_cifar10_become_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    labels = labels_of([1000] * 10)
    rows = np.zeros((10_000, 3073), dtype=np.uint8)
    rows[:, 0] = labels
    rows[:, 1 + 1024] = 51 * (labels % 5)  # The first green pixel.
    name = "cifar-10-batches-bin/test_batch.bin"
    publish(cifar10, tmp_path / "cifar10", {name: rows.tobytes()}, monkeypatch)
    stream = load_dataset("cifar10").stream(clients=50, rounds=200, seed=0)
    assert stream.x.shape == (50, 200, 3, 32, 32)
    assert np.allclose(stream.x[:, :, 1, 0, 0], 0.2 * (stream.y % 5))
    for client in range(50):
        counts = np.bincount(stream.y[client], minlength=10)
        assert counts[client % 10] == 155
        assert set(np.delete(counts, client % 10)) == {5}
    (tmp_path / "cifar10" / name).write_bytes(rows.tobytes()[:-1])
    with pytest.raises(InvalidInput, match="its MD5 is"):
        load_dataset("cifar10").stream(clients=5, rounds=5, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_real_image_sets_are_complete(name: str, data_folder: Path) -> None:
    dataset = load_dataset(name)
    assert str(data_folder) in dataset.check()
    stream = dataset.stream(clients=50, rounds=200, seed=0)
    assert np.unique(stream.x.reshape(10_000, -1), axis=0).shape[0] > 9_900
    own = np.array([np.bincount(row, minlength=10).max() for row in stream.y])
    assert (own.min(), own.max()) == ((133, 140) if name == "mnist" else (155, 155))
    sizes = {len(each.x) for each in dataset.training_sets(seed=0)}
    assert max(sizes) == (6900 if name == "mnist" else 9500)
