"""Streams that drift: each client's majority class or site changes during the run, or its images rotate.

| kind | |
|---|---|
| `switch` | two changes, after a third and two thirds of the rounds |
| `gradual` | the same two, each spread over a sixth of the rounds: new samples come with linearly growing probability |
| `recurring` | three changes, after each quarter, between two concepts: A, B, A, B |
| `rotate` | images turn from 0° to 45°, linearly over the rounds; thirds count as phases |

In each round, a client with drift sees the sample that some client without drift, its *source*, sees in that round. So
drift repeats no sample for a client, and all values keep their scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ofms.core.errors import InvalidInput
from ofms.core.typing import Integers
from ofms.data.partition import random_generator
from ofms.data.stream import Dataset, Stream

Drift = Literal["switch", "gradual", "recurring", "rotate"]

LARGEST_ANGLE = 45.0
_GRADUAL_SHARE = 1 / 6
_DRIFT = 3


def make_stream(dataset: Dataset, *, clients: int, rounds: int, seed: int, drift: Drift | None = None) -> Stream:
    """A dataset's stream, with drift if requested; rejects drift that the dataset does not provide."""
    if drift is None:
        return dataset.stream(clients=clients, rounds=rounds, seed=seed)
    make = getattr(dataset, "drifting_stream", None)
    if make is None:
        raise InvalidInput("drift", drift, f"dataset {dataset.name} has no `drifting_stream`; leave drift out")
    stream: Stream = make(clients=clients, rounds=rounds, seed=seed, drift=drift)
    return stream


def changes_of(drift: Drift, rounds: int) -> tuple[int, ...]:
    """The first round (from 0) of each phase but the first.

    >>> changes_of("switch", 200), changes_of("recurring", 200)
    ((66, 133), (50, 100, 150))
    """
    phases = 4 if drift == "recurring" else 3
    if rounds < phases:
        raise InvalidInput("drift", drift, f"it has {phases} phases; request at least as many rounds, not {rounds}")
    return tuple(phase * rounds // phases for phase in range(1, phases))


def drifting(sources: Stream, concepts: Integers, drift: Drift, *, seed: int) -> Stream:
    """The stream of clients that move between sources; parameters as of `sources_by_round`."""
    source, step = sources_by_round(concepts, sources.rounds, drift, seed=seed), np.arange(sources.rounds)
    changes = changes_of(drift, sources.rounds)
    x, y, names = sources.x[source, step], sources.y[source, step], sources.names[: len(concepts)]
    return replace(sources, x=x, y=y, changes=changes, names=names)


def sources_by_round(concepts: Integers, rounds: int, drift: Drift, *, seed: int) -> Integers:
    """[N, T] the source of each sample.

    Parameters
    ----------
    concepts
        [N, C] the sources of each client, in the order in which it sees them; after the last one, the first again.
        Drift that recurs uses the first two.

    Examples
    --------
    >>> sources_by_round(np.array([[4, 5, 6]]), 8, "recurring", seed=0).tolist()
    [[4, 4, 5, 5, 4, 4, 5, 5]]
    """
    phase = _phases(drift, len(concepts), rounds, random_generator(seed, _DRIFT))
    number = 2 if drift == "recurring" else concepts.shape[1]
    return np.take_along_axis(concepts, phase % number, axis=1)


def next_classes(clients: int, classes: int = 10) -> Integers:
    """[N, 3] each client and two others as sources; client i's class is i mod C, and all three have different ones.

    A client moves within its block of C clients, in steps that differ between blocks: so clients of the same class
    move to different ones, and two clients never have the same source.

    >>> next_classes(12)[[0, 9, 10]].tolist()
    [[0, 1, 2], [9, 0, 1], [10, 12, 14]]
    """
    block, own = np.divmod(np.arange(clients)[:, None], classes)
    step = 1 + block % ((classes - 1) // 2)
    concepts: Integers = block * classes + (own + step * np.arange(3)) % classes
    return concepts


def _phases(drift: Drift, clients: int, rounds: int, generator: np.random.Generator) -> Integers:
    """[N, T] the phase that each sample is from; if gradual, drawn around each change."""
    steps, changes = np.arange(rounds), np.array(changes_of(drift, rounds))
    if drift != "gradual":
        return np.broadcast_to(np.searchsorted(changes, steps, side="right"), (clients, rounds))
    spread = _GRADUAL_SHARE * rounds
    # Changes that are over in the middle of each round: each ½ at its round, 0 and 1 at the ends of its spread.
    over = np.clip((steps + 0.5 - changes[:, None]) / spread + 0.5, 0, 1).sum(axis=0)
    phases: Integers = np.floor(over + generator.random((clients, rounds))).astype(np.int64)
    return phases


def rotating(stream: Stream, *, image: tuple[int, int]) -> Stream:
    """The stream with images that turn, all clients' by the same angle; the last axes of an input hold the image.

    Parameters
    ----------
    image
        Height and width.
    """
    height, width = image
    rotated = np.empty_like(stream.x)
    for step, angle in enumerate(np.linspace(0, LARGEST_ANGLE, stream.rounds)):
        pictures = stream.x[:, step].reshape(stream.clients, -1, height, width)
        rotated[:, step] = rotate(pictures, float(angle)).reshape(stream.x[:, step].shape)
    return replace(stream, x=rotated, changes=changes_of("rotate", stream.rounds))


def rotate(images: npt.NDArray[np.float32], degrees: float) -> npt.NDArray[np.float32]:
    """Images [..., height, width], turned counter-clockwise around their centres; bilinear, 0 outside.

    >>> rotate(np.array([[1, 2], [3, 4]], dtype=np.float32), 90).round(4).tolist()
    [[2.0, 4.0], [1.0, 3.0]]
    """
    height, width = images.shape[-2:]
    down, right = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    row, column = down * cosine + right * sine, right * cosine - down * sine
    row, column = row + (height - 1) / 2, column + (width - 1) / 2
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    turned = np.zeros_like(images)
    for at_row, share_of_row in ((top, top + 1 - row), (top + 1, row - top)):
        for at_column, share_of_column in ((left, left + 1 - column), (left + 1, column - left)):
            inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
            share = np.where(inside, share_of_row * share_of_column, 0).astype(np.float32)
            turned += share * images[..., np.where(inside, at_row, 0), np.where(inside, at_column, 0)]
    return turned
