"""Messages between clients and the server, and the catalogue of models that every client knows.

A message is a record of arrays with a leading client axis. It converts to and from a mapping of arrays, so it can be
stored, sent and compared without pickling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self, cast

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The dictionary as every client knows it: names, costs in bytes, versions.

    Attributes
    ----------
    names
        K names.
    storage
        [K] c_k, the memory that a model takes.
    upload
        [K] b_k, the size of an update.
    version
        [K] the number of updates of each model.
    revision
        Fingerprint of the initial dictionary.
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
        """The fields as plain arrays, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: np.asarray(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> Self:
        """The inverse of `to_arrays`."""
        values = {field.name: _scalar(arrays[field.name]) if field.name in arrays else None for field in fields(cls)}
        return cls(**values)

    def rows(self, clients: slice | Integers) -> Self:
        """The message for some of the clients, by their rows."""
        arrays = self.to_arrays()
        return self.from_arrays(
            {name: array if name in self.shared else array[clients] for name, array in arrays.items()}
        )

    @classmethod
    def stack(cls, messages: Sequence[Self]) -> Self:
        """Concatenate the messages of several clients."""
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
    """The models that clients request, and the versions that they hold (-1: not held).

    The model that a client chose to predict with is not sent.
    """

    exchange: int
    client: Integers
    wanted: Flags
    holding: Integers


@dataclass(frozen=True, eq=False)
class Grants(Message):
    """The models that clients hold until the next exchange, those that are sent to them, and who uploads.

    Attributes
    ----------
    held
        [N, K] the models that the client holds until the next exchange.
    sent
        [N, K] the held models that the client does not have in their current version.
    prediction_weights
        [N, K] weights of the models in the prediction if the server sets them; else None.
    uploads
        [N] whether the client is in the uploading group.
    groups
        α, the number of groups.
    version
        [K] the versions of the models.
    quarantined
        [K] the models that are not fine-tuned any more because they diverged; None if there are none.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"exchange", "groups", "version", "quarantined"})

    exchange: int
    client: Integers
    held: Flags
    sent: Flags
    prediction_weights: Floats | None
    uploads: Flags
    groups: int
    version: Integers
    quarantined: Flags | None = None


@dataclass(frozen=True, eq=False)
class Reports(Message):
    """The clients' reports on an exchange; the updates (parameter differences) are sent separately.

    Attributes
    ----------
    losses
        [N, K] selection losses, or weighted losses of fine-tuned models, if the server learns from them; NaN for models
        that were not held. Else None.
    updated
        [N, K] the models whose update is uploaded.
    left_out
        [N, K] the models whose update is not uploaded because it is not finite; None if there are none.
    """

    exchange: int
    client: Integers
    losses: Floats | None
    updated: Flags
    left_out: Flags | None = None

    def lost(self) -> Flags:
        """[K] the models of which clients computed updates, none of them finite."""
        if self.left_out is None:
            return np.zeros(self.updated.shape[1], dtype=np.bool_)
        computed, updated = np.asarray(self.left_out.any(axis=0)), np.asarray(self.updated.any(axis=0))
        return computed & ~updated

    def without_updates(self, left_out: Flags) -> Reports:
        """The reports if some of the [N, K] updates are not finite."""
        return replace(self, updated=self.updated & ~left_out, left_out=left_out) if left_out.any() else self


@dataclass(frozen=True, eq=False)
class Plan:
    """How clients predict and fine-tune until the next exchange. It never leaves the device.

    Attributes
    ----------
    held
        [N, K] the models held.
    prediction_weights
        [N, K] their weights in the prediction; one-hot if a single model predicts.
    inclusion
        [N, K] the probability, recorded at the draw, that a model's loss is observed: that it is held or, with bandit
        feedback, that it is chosen.
    update_weight
        [N, K] the weight of the client's update of a model: α · min(1/q, cap) if it uploads and holds it, else 0.
    offset
        [N, C] what is added to the mixed prediction; None if nothing is.
    """

    held: Flags
    prediction_weights: Floats
    inclusion: Floats
    update_weight: Floats
    offset: Floats | None = None

    by_model: ClassVar[tuple[str, ...]] = ("held", "prediction_weights", "inclusion", "update_weight")

    def for_models(self, change: Callable[[AnyArray], AnyArray]) -> Plan:
        """The plan with its [N, K] arrays changed."""
        return replace(Plan(*(change(getattr(self, name)) for name in self.by_model)), offset=self.offset)

    def for_clients(self, change: Callable[[AnyArray], AnyArray]) -> Plan:
        """The plan with the rows of its arrays changed."""
        return replace(self.for_models(change), offset=None if self.offset is None else change(self.offset))

    @classmethod
    def stack(cls, plans: Sequence[Plan]) -> Plan:
        """Concatenate the plans of several clients; those without an offset add 0."""
        width = max((plan.offset.shape[1] for plan in plans if plan.offset is not None), default=0)
        nothing = [np.zeros((len(plan.held), width)) for plan in plans]
        offsets = [none if plan.offset is None else plan.offset for plan, none in zip(plans, nothing, strict=True)]
        parts = (np.concatenate([getattr(plan, name) for plan in plans]) for name in cls.by_model)
        return replace(cls(*parts), offset=np.concatenate(offsets) if width else None)
