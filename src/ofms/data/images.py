"""Partition of test images over clients: each client sees mostly one class, and no image is used twice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Integers
from ofms.data.drift import Drift, changes_of, next_classes, rotating, sources_by_round
from ofms.data.partition import biased_sample, random_generator, shuffled
from ofms.data.stream import Stream, TrainingSet

Pixels = npt.NDArray[np.uint8]

CLIENTS, ROUNDS, CLASSES = 50, 200, 10
_CLIENTS_PER_CLASS = CLIENTS // CLASSES
_STREAM, _TRAINING = 1, 2


def image_stream(
    images: Pixels,
    labels: Integers,
    *,
    majority: int,
    others: int,
    clients: int,
    rounds: int,
    seed: int,
    name: str,
    drift: Drift | None = None,
) -> Stream:
    """The paper's partition: 10,000 test images over 50 clients with 200 each; a smaller run uses a part of it.

    With `drift`, clients move to the images of clients with other classes, or images rotate.
    """
    if clients > CLIENTS or rounds > ROUNDS:
        raise InvalidInput(
            "clients × rounds",
            f"{clients} × {rounds}",
            f"{name}'s test images suffice for {CLIENTS} clients × {ROUNDS} rounds; request at most that",
        )
    generator = random_generator(seed, _STREAM)
    drawn = partition_classes(labels, majority=majority, others=others, generator=generator)[:, :rounds]
    if drift is None or drift == "rotate":
        drawn = drawn[:clients]
    else:
        source = sources_by_round(next_classes(clients, CLASSES), rounds, drift, seed=seed)
        drawn = drawn[source, np.arange(rounds)]
    changes = () if drift is None else changes_of(drift, rounds)
    stream = Stream(scaled(images[drawn]), labels[drawn], "classification", changes)
    return rotating(stream, image=images.shape[-2:]) if drift == "rotate" else stream


def partition_classes(labels: Integers, *, majority: int, others: int, generator: np.random.Generator) -> Integers:
    """[50, 200] sample indices, each used once.

    Client i's own class is i mod 10. It gets up to `majority` samples of it, fewer if the class is too small to
    leave `others` to every other client; at least `others` of each other class; and its remaining samples from those
    not assigned yet, of its own class last.

    Examples
    --------
    >>> labels = np.arange(10_000) % 10
    >>> drawn = partition_classes(labels, majority=155, others=5, generator=random_generator(0, 0))
    >>> np.bincount(labels[drawn[3]]).tolist()
    [5, 5, 5, 155, 5, 5, 5, 5, 5, 5]
    >>> np.unique(drawn).size
    10000
    """
    counts = _class_counts(np.bincount(labels, minlength=CLASSES), majority, others)
    members = []
    for each in range(CLASSES):
        own = np.flatnonzero(labels == each)
        members.append(np.split(own[shuffled(own.size, generator)], np.cumsum(counts[:, each])))
    drawn = np.stack([np.concatenate([parts[client] for parts in members]) for client in range(CLIENTS)])
    return np.stack([row[shuffled(ROUNDS, generator)] for row in drawn])


def _class_counts(available: Integers, majority: int, others: int) -> Integers:
    """[50, 10] number of samples of each class per client."""
    own = np.arange(CLIENTS) % CLASSES
    least = others * (CLIENTS - _CLIENTS_PER_CLASS)
    of_own = np.minimum(majority, (available - least) // _CLIENTS_PER_CLASS)
    counts = np.full((CLIENTS, CLASSES), others)
    counts[np.arange(CLIENTS), own] = of_own[own]
    left, wanted = available - counts.sum(axis=0), ROUNDS - counts.sum(axis=1)
    if left.min() < 0 or wanted.min() < 0 or left.sum() < wanted.sum():
        raise InvalidInput("labels", available.tolist(), "the classes are too uneven for the paper's partition")
    # To the client that lacks most, from the class with most remaining samples; from its own class last.
    while wanted.any():
        client = int(np.argmax(wanted))
        each = int(np.argmax(np.where((np.arange(CLASSES) == own[client]) & (left > 0), 0.5, left)))
        counts[client, each] += 1
        wanted[client] -= 1
        left[each] -= 1
    return counts


def image_training_sets(
    images: Pixels, labels: Integers, *, own_count: int, other_count: int, seed: int
) -> list[TrainingSet]:
    """One training set per class, with few samples of the other classes."""
    generator = random_generator(seed, _TRAINING)
    sets = []
    for each in range(CLASSES):
        chosen = biased_sample(labels, own=each, own_count=own_count, other_count=other_count, generator=generator)
        sets.append(TrainingSet(f"class{each}", scaled(images[chosen]), labels[chosen]))
    return sets


def scaled(pixels: AnyArray) -> npt.NDArray[np.float32]:
    """Scale pixels to [0, 1]."""
    return np.divide(pixels, 255, dtype=np.float32)
