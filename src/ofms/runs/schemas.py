"""Schemas of experiment and preset files."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ofms.data.drift import Drift
from ofms.data.table import TableSource
from ofms.plugins import NO_TRUST, Trust
from ofms.storage.schema import convert

# Settings by policy name.
PolicyTables = dict[str, dict[str, Any]]


class Network(msgspec.Struct, forbid_unknown_fields=True):
    """One network of a dictionary; it is trained on each of the dataset's training sets."""

    name: str
    architecture: str
    options: dict[str, Any]
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.01
    momentum: float = 0.9
    initialisation: Literal["default", "glorot-uniform", "glorot-normal", "uniform", "normal"] = "default"


class Pretraining(msgspec.Struct, forbid_unknown_fields=True):
    """How an experiment's dictionary is pre-trained; `common` holds the values that its networks share."""

    epochs: int
    batch_size: int
    networks: list[dict[str, Any]]
    common: dict[str, Any] = {}
    seed: int = 0

    def kinds(self) -> list[Network]:
        """The networks, with the common values filled in."""
        return [convert(self.common | network, Network) for network in self.networks]


class TrustTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[trust]`: packages whose code may run, and the folders that they are imported from."""

    packages: tuple[str, ...]
    folders: tuple[str, ...] = (".",)

    def record(self) -> Trust:
        return Trust(self.packages, self.folders)


class EventTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, kw_only=True):
    """`[[events]]`: what changes from the beginning of an exchange on.

    Attributes
    ----------
    join, leave, drift
        Clients by number or name, or `first-last`. Those that join are not in the fleet before. Those that drift see
        the samples of the next one of them from then on, and the last one those of the first.
    add, retire
        Models of the dictionary. Those that are added are not in use before.
    budget
        New budgets by client.
    """

    exchange: int
    join: tuple[int | str, ...] = ()
    leave: tuple[int | str, ...] = ()
    drift: tuple[int | str, ...] = ()
    add: tuple[str, ...] = ()
    retire: tuple[str, ...] = ()
    budget: dict[str, str | int | float] = {}
    bandwidth: str | None = None
    interval: int | None = None
    policy: str | None = None
    settings: dict[str, Any] | None = None


class Experiment(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An experiment's file: on a dataset, or on your own stream."""

    summary: str
    dataset: str | None = None
    stream: TableSource | None = None
    clients: int | None = None
    rounds: int | None = None
    budget: str | dict[str, str | int | float]
    bandwidth: str
    preset: str = "published"
    interval: int = 1
    drift: Drift | None = None
    models: str | None = None
    policies: PolicyTables = {}
    trust: TrustTable | None = None
    pretraining: Pretraining | None = None
    events: tuple[EventTable, ...] = ()
    doubling: int | None = None

    def trusted(self) -> Trust:
        """The packages that its file trusts."""
        return NO_TRUST if self.trust is None else self.trust.record()


class Preset(msgspec.Struct, forbid_unknown_fields=True):
    """A preset's file: settings of each policy, some of which depend on the task."""

    summary: str
    policies: PolicyTables = {}
    classification: PolicyTables = {}
    regression: PolicyTables = {}
