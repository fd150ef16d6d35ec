"""What crosses between clients and the server, and what every client knows of the dictionary.

A message holds arrays with a leading client axis. It turns into a plain mapping of arrays and back, so that
it can be stored, sent and compared without a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self, cast

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What every client knows of the dictionary: names, costs in bytes, versions.

    Attributes
    ----------
    names
        K names.
    storage
        [K] c_k, what a client must hold.
    upload
        [K] b_k, what sending an update takes.
    version
        [K] how often each model was fine-tuned.
    revision
        A fingerprint of the dictionary that the run started from.
    """

    names: tuple[str, ...]
    storage: Integers
    upload: Integers
    version: Integers
    revision: str = ""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Message:
    """A record of arrays; those named in `shared` have no client axis."""

    shared: ClassVar[frozenset[str]] = frozenset({"exchange"})

    def to_arrays(self) -> dict[str, AnyArray]:
        """The fields as plain arrays; a field that is None is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: np.asarray(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> Self:
        """The message back from its arrays."""
        values = {field.name: _scalar(arrays[field.name]) if field.name in arrays else None for field in fields(cls)}
        return cls(**values)

    def rows(self, clients: slice) -> Self:
        """The part of the message that concerns some of the clients."""
        arrays = self.to_arrays()
        return self.from_arrays(
            {name: array if name in self.shared else array[clients] for name, array in arrays.items()}
        )

    @classmethod
    def stack(cls, messages: Sequence[Self]) -> Self:
        """Messages of several clients as one."""
        parts = [message.to_arrays() for message in messages]
        first = parts[0]
        return cls.from_arrays(
            {
                name: first[name] if name in cls.shared else np.concatenate([part[name] for part in parts])
                for name in first
            }
        )


def _scalar(array: AnyArray) -> AnyArray | int:
    return cast("int", array.item()) if array.ndim == 0 else array


@dataclass(frozen=True, eq=False)
class Requests(Message):
    """Which models clients want to hold, and which they have in which version (-1: not there).

    Not which one was chosen: that stays on the device.
    """

    exchange: int
    client: Integers
    wanted: Flags
    holding: Integers


@dataclass(frozen=True, eq=False)
class Grants(Message):
    """What the server lets clients hold, what it sends for that, and who uploads.

    Attributes
    ----------
    held
        [N, K] what the client holds until the next exchange.
    sent
        [N, K] what is held and was not there in that version yet.
    prediction_weights
        [N, K] weights of the models in the prediction where the server decides; else None.
    uploads
        [N] whether the client is in the group that uploads.
    groups
        α, the number of groups.
    version
        [K] the versions of the models.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"exchange", "groups", "version"})

    exchange: int
    client: Integers
    held: Flags
    sent: Flags
    prediction_weights: Floats | None
    uploads: Flags
    groups: int
    version: Integers


@dataclass(frozen=True, eq=False)
class Reports(Message):
    """What clients tell after an exchange; the tensors (deltas, not θ) travel beside.

    Attributes
    ----------
    losses
        [N, K] selection losses where a policy's server learns from them, NaN for what was not held; else None.
    updated
        [N, K] the models whose update is uploaded.
    """

    exchange: int
    client: Integers
    losses: Floats | None
    updated: Flags


@dataclass(frozen=True, eq=False)
class Plan:
    """What clients do until the next exchange. It never leaves the device.

    Attributes
    ----------
    held
        [N, K] the models held.
    prediction_weights
        [N, K] their weights in the prediction: one-hot where one model predicts.
    inclusion
        [N, K] the probability that a model's loss is observed, as it was at the draw: that it is held, or, where only
        the chosen one is observed, that it is chosen.
    update_weight
        [N, K] the weight of the client's update of a model: α · min(1/q, cap) where it uploads and holds, else 0.
    """

    held: Flags
    prediction_weights: Floats
    inclusion: Floats
    update_weight: Floats
