"""A deployment is a folder: what the server shall do, who its devices are, keys, and what the server remembers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomli_w

from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.files import DEVICES, SERVER, read_toml, split_address
from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.policies.registry import setting_names
from ofms.runs.units import parse_bandwidth, parse_budgets
from ofms.storage.files import write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

TEMPLATE = """\
# What the server does. Paths are relative to this file.

# Where devices find it, HOST:PORT.
address = {address}

# The dictionary's folder.
models = {models}

# Any that `ofms list` shows; its own settings are at the end.
policy = "ofms-ft"
seed = 0

# E, what may be uploaded in an exchange: a share of the summed budgets, or bytes as "64MiB".
bandwidth = "100%"

# n, the samples between two exchanges; T, the horizon in samples, on which tuned rates hang and where the server ends.
interval = {interval}
rounds = {rounds}

# Seconds that devices have for the samples of an exchange, and that messages may take on top of that.
deadline = 60
travel = 60

# An update's largest norm, in norms of the parameters which it updates.
largest_update = 1.0

# How many earlier versions of the dictionary are kept for a rollback.
keep = 10

[settings]
"""


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`server.toml`."""

    address: str
    models: str
    rounds: int
    policy: str = "ofms-ft"
    bandwidth: str = "100%"
    interval: int = 20
    seed: int = 0
    deadline: float = 60
    travel: float = 60
    largest_update: float = 1.0
    keep: int = 10
    settings: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("interval", 1), ("keep", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidInput(name, getattr(self, name), f"give at least {least}")
        for name in ("deadline", "travel", "largest_update"):
            if not getattr(self, name) > 0:
                raise InvalidInput(name, getattr(self, name), "give a number above 0")
        split_address(self.address)


class DeviceEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A device in `devices.toml`; its place there is its number for good, so revoked ones stay."""

    name: str
    budget: str
    key: str
    revoked: bool = False


class Roster(msgspec.Struct, forbid_unknown_fields=True):
    """`devices.toml`."""

    devices: list[DeviceEntry] = []


class Deployment:
    """A deployment's folder, read."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.config = read_config(self.folder)
        self.roster = read_roster(self.folder)
        if not self.roster.devices:
            raise InvalidInput("devices", 0, f"add one: ofms deploy keys {folder} --device NAME=BUDGET")

    def coordinator(self) -> Coordinator:
        """The server half for these devices, as it is before the first exchange."""
        dictionary = Dictionary.read(self.folder / self.config.models)
        largest = int(dictionary.catalogue().storage.max())
        budgets = np.concatenate(
            [parse_budgets(device.budget, largest=largest, clients=1) for device in self.roster.devices]
        )
        config = self.config
        known = setting_names(config.policy)
        for name in config.settings.keys() - known:
            raise InvalidInput("settings", name, f"{config.policy} has {', '.join(sorted(known))}")
        try:
            return Coordinator(
                dictionary,
                budgets=budgets,
                bandwidth=parse_bandwidth(config.bandwidth, largest=largest, budgets=budgets),
                rounds=config.rounds,
                interval=config.interval,
                policy=config.policy,
                settings=config.settings,
                seed=config.seed,
                largest_update=config.largest_update,
            )
        except msgspec.ValidationError as error:
            raise InvalidInput("settings", config.settings, f"{error} ({self.folder / SERVER})") from None


def read_config(folder: Path) -> ServerConfig:
    """What the server of a deployment shall do."""
    return read_toml(folder / SERVER, ServerConfig)


def write_config(folder: Path, config: ServerConfig) -> None:
    """Write `server.toml`; a setting that is None is left out, which is the same, because TOML has no None."""
    values = msgspec.to_builtins(config)
    values["settings"] = {name: value for name, value in config.settings.items() if value is not None}
    write_whole(folder / SERVER, tomli_w.dumps(values).encode())


def read_roster(folder: Path) -> Roster:
    """The devices of a deployment."""
    path = folder / DEVICES
    return read_toml(path, Roster) if path.exists() else Roster()


def write_roster(folder: Path, roster: Roster) -> None:
    write_whole(folder / DEVICES, tomli_w.dumps(msgspec.to_builtins(roster)).encode())


def require_name(name: str) -> str:
    """Refuse a device's name that would not do as a folder's."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("device", name, "use letters, digits, '.', '_' and '-', at most 64")
    return name
