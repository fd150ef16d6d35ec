"""The stream: N clients × T samples, in the order in which each client receives them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.core.words import counted

Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Stream:
    """The samples of all clients.

    Attributes
    ----------
    x
        [N, T, ...] inputs.
    y
        [N, T] class indices, or values.
    changes
        The rounds (from 0) in which the distribution of the samples changes, ascending; empty without drift.
    names
        The clients' names; empty if they only have numbers.
    warnings
        What a user should know about the samples, one line each.

    Examples
    --------
    >>> stream = Stream(np.zeros((2, 3, 5), dtype=np.float32), np.zeros((2, 3)), "regression")
    >>> stream
    Stream(regression, 2 clients × 3 rounds, inputs of shape (5,))
    >>> stream.clients, stream.rounds
    (2, 3)
    """

    x: npt.NDArray[np.float32]
    y: AnyArray
    task: Task
    changes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        return int(self.x.shape[0])

    @property
    def rounds(self) -> int:
        return int(self.x.shape[1])

    def __repr__(self) -> str:
        named = f": {self.names[0]} to {self.names[-1]}" if len(self.names) else ""
        changes = f", {len(self.changes)} changes" if self.changes else ""
        size = f"{counted(self.clients, 'client')} × {counted(self.rounds, 'round')}"
        size += f", inputs of shape {tuple(self.x.shape[2:])}"
        return f"Stream({self.task}, {size}{changes}{named})"

    def part(self, clients: int, rounds: int) -> Stream:
        """The first samples of the first clients."""
        changes = tuple(change for change in self.changes if change < rounds)
        x, y, names = self.x[:clients, :rounds], self.y[:clients, :rounds], self.names[:clients]
        return replace(self, x=x, y=y, changes=changes, names=names)

    def rows(self, clients: tuple[int, int]) -> Stream:
        """The clients from the first number to before the second."""
        some = slice(*clients)
        return replace(self, x=self.x[some], y=self.y[some], names=self.names[some])

    def name_of(self, client: int) -> str:
        """A client's name, or its number if clients have no names."""
        return self.names[client] if self.names else str(client)

    def fingerprint(self) -> str:
        """SHA-256 of samples, dtypes, task and changes; the same whatever the clients' names."""
        described = (self.x.shape, self.x.dtype, self.y.dtype, self.task, *([self.changes] if self.changes else []))
        digest = hashlib.sha256(repr(described).encode())
        for values in (self.x, self.y):
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()

    def require_sound(self) -> None:
        """Reject a stream that is empty, has mismatched shapes, or holds a value that is not finite."""
        if self.x.ndim < 2 or self.y.shape != self.x.shape[:2]:
            raise InvalidInput("stream", self.x.shape, f"inputs are [N, T, ...] and targets [N, T]; got {self.y.shape}")
        if 0 in self.x.shape:
            raise InvalidInput("stream", self.x.shape, "give at least one client and one sample")
        if list(self.changes) != sorted({change for change in self.changes if 0 < change < self.rounds}):
            raise InvalidInput("stream changes", self.changes, f"give ascending rounds from 1 to {self.rounds - 1}")
        if self.names and (len(self.names) != self.clients or len(set(self.names)) < len(self.names)):
            raise InvalidInput(
                "stream names", len(self.names), f"give each of the {self.clients} clients one of its own"
            )
        for name in self.names:
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise InvalidInput("stream names", ascii(name), "give names of printable characters")
            if name.strip() == "*":
                raise InvalidInput(
                    "stream names", name, "in budgets it stands for all other clients; rename the client"
                )
        seen: set[str] = set()
        for name in self.names:
            if name.strip() in seen:
                raise InvalidInput("stream names", repr(name), "another name differs in spaces only; correct one")
            seen.add(name.strip())
        for name, values in (("inputs", self.x), ("targets", self.y)):
            broken = _beyond_single_precision(values)
            if broken.any():
                place = np.argwhere(broken)[0]
                value, where = values[tuple(place)], f"see client {self.name_of(int(place[0]))}, round {place[1] + 1}"
                if np.isfinite(value):
                    raise InvalidInput(f"stream {name}", f"{value:.4g}", f"{where}; beyond float32: scale the values")
                raise InvalidInput(f"stream {name}", "not finite", f"{where}; drop or fill the sample")
        if self.task == "classification" and (self.y.dtype.kind not in "iu" or self.y.min() < 0):
            found = self.y.dtype if self.y.dtype.kind not in "iu" else self.y.min()
            raise InvalidInput("stream targets", found, "classes must be integers from 0")


def _beyond_single_precision(values: AnyArray) -> npt.NDArray[np.bool_]:
    """Where values are not finite, or not as float32."""
    if values.dtype.kind != "f" or values.dtype.itemsize <= 4:
        return ~np.isfinite(values)
    largest = np.finfo(np.float32).max
    return ~((values >= -largest) & (values <= largest))


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Labelled samples on which one or several models of a dictionary are pre-trained."""

    label: str
    x: npt.NDArray[np.float32]
    y: AnyArray


class Dataset(Protocol):
    """The interface of a dataset, which its module provides as `dataset`.

    A dataset that can drift also has a method `drifting_stream`, with the arguments of `stream` and the kind of `drift`
    (`ofms.data.drift`); it returns a stream with `changes`.
    """

    name: str
    task: Task
    summary: str

    def fetch(self) -> None:
        """Download missing files into the data folder."""
        ...

    def check(self) -> str:
        """Verify the files and describe them in one line; raises `InvalidInput` if one is missing or damaged."""
        ...

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        """The samples of the clients."""
        ...

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        """The samples that the dictionary's models are trained on."""
        ...
