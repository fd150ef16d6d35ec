"""The values of a welcome, typed: a device checks them before it builds anything from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ofms.core.pooling import Pooling
from ofms.policies.settings import LossBound
from ofms.storage.typed import from_values

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**50)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class WelcomedModel(msgspec.Struct):
    """How to build a model's network, and its costs in bytes."""

    name: str
    architecture: str
    options: dict[str, Any]
    storage: _Count
    upload: _Count
    trainable: tuple[str, ...]
    # The name of its ONNX graphs, if the server has some.
    graphs: str | None = None


class WelcomedPolicy(msgspec.Struct):
    """A policy's client half, in the values of `describe_policy`."""

    name: str
    client: dict[str, Any]
    local: dict[str, Any] | None
    loss_bound: LossBound
    observes: Literal["held", "predicting"]
    reports_losses: bool
    # Servers before 0.3.0 do not send these; their policies use none of them.
    reports_use: bool = False
    weighs_by_use: bool = False
    remembers: _Number = 0
    pooling: Pooling = "mean"
    own_model: _Number | None = None
    uploaded: tuple[_Number, ...] | None = None
    offset_memories: tuple[Annotated[float, msgspec.Meta(gt=0, le=1)], ...] = ()


class Welcome(msgspec.Struct):
    """The values of a welcome; `rounds` is None if the fleet has no horizon."""

    deployment: str
    revision: str
    exchange: _Number
    client: _Number
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    task: Literal["classification", "regression"]
    rounds: _Count | None
    interval: _Count
    budget: _Count
    models: Annotated[list[WelcomedModel], msgspec.Meta(min_length=2)]
    policy: dict[str, Any]
    # Earlier servers do not send these; their fleets do not change.
    places: list[_Number] | None = None
    changed: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,15}$")] = "0"
    anew: _Number = 0
    renewed: dict[str, _Number] = {}
    since: _Number = 0
    start: _Number = 0


def read_welcome(values: Mapping[str, Any]) -> Welcome:
    """The typed values of a welcome; raises `msgspec.ValidationError`."""
    return from_values(dict(values), Welcome)
