"""Sampling for clients that each see mostly one class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ofms.core.typing import AnyArray, Integers


def random_generator(seed: int, purpose: int) -> np.random.Generator:
    """An independent generator for each (seed, purpose); keys from 2⁶³ up do not collide with the policies' draws."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, 2**63 + purpose], dtype=np.uint64)))


def shuffled(count: int, generator: np.random.Generator) -> Integers:
    """A random permutation of `count` items, derived only from float64 draws."""
    return np.argsort(generator.random(count), kind="stable")


def majority_streams(
    labels: npt.NDArray[np.int64], *, clients: int, rounds: int, share: float, generator: np.random.Generator
) -> Integers:
    """[N, T] sample indices, drawn with replacement; a fraction `share` of each client's samples is of its own class.

    Client i's class is i mod C; its other samples are spread evenly over the other classes, in random order.

    Examples
    --------
    >>> labels = np.arange(100) % 10
    >>> drawn = majority_streams(labels, clients=3, rounds=40, share=0.775, generator=random_generator(0, 0))
    >>> np.bincount(labels[drawn[2]], minlength=10).tolist()
    [1, 1, 31, 1, 1, 1, 1, 1, 1, 1]
    """
    classes = int(labels.max()) + 1
    members = [np.flatnonzero(labels == each) for each in range(classes)]
    drawn = np.empty((clients, rounds), dtype=np.int64)
    for client in range(clients):
        own = client % classes
        others = [each for each in range(classes) if each != own]
        majority = round(share * rounds)
        wanted = np.full(rounds, own)
        wanted[majority:] = np.resize(others, rounds - majority)
        uniform = generator.random(rounds)
        picks = [int(members[each][int(u * members[each].size)]) for each, u in zip(wanted, uniform, strict=True)]
        drawn[client] = np.array(picks)[shuffled(rounds, generator)]
    return drawn


def biased_sample(
    labels: AnyArray, *, own: int, own_count: int, other_count: int, generator: np.random.Generator
) -> Integers:
    """Indices of up to `own_count` samples of one class and `other_count` of each other, without replacement.

    >>> labels = np.arange(100) % 10
    >>> chosen = biased_sample(labels, own=3, own_count=50, other_count=2, generator=random_generator(0, 0))
    >>> np.bincount(labels[chosen]).tolist()
    [2, 2, 2, 10, 2, 2, 2, 2, 2, 2]
    """
    parts = []
    for each in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == each)
        count = min(own_count if each == own else other_count, members.size)
        parts.append(members[shuffled(members.size, generator)[:count]])
    return np.concatenate(parts)
