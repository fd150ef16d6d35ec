"""A deployment is a folder: the server's configuration, its devices, keys, and the server's checkpoint."""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import tomli_w

from ofms.coordinator.changes import read_models
from ofms.coordinator.checkpoint import Beginning
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.files import ADDED, DEVICES, GRAPHS, SERVER, read_toml, split_address
from ofms.coordinator.graphs import read_graphs
from ofms.coordinator.roster import read_last_roster
from ofms.core.choices import suggest
from ofms.core.declared import Doc, Range, Values
from ofms.core.errors import InvalidInput
from ofms.core.robust import Aggregation
from ofms.core.typing import Integers
from ofms.models.dictionary import Dictionary, Model
from ofms.plugins import Trust
from ofms.policies import DEFAULT
from ofms.policies.registry import setting_names, settings_type
from ofms.policies.settings import check_settings
from ofms.runs.config import without_nothing
from ofms.runs.schemas import AggregationName, Bandwidth, Doubling, Interval, PolicyName, Seed, TrustTable
from ofms.runs.units import parse_budgets
from ofms.storage.files import write_whole
from ofms.storage.schema import convert

TEMPLATE = """\
# Server configuration. Paths are relative to this file.

# Address at which devices reach the server, HOST:PORT.
address = {address}

# The dictionary's folder.
models = {models}

# A policy listed by `ofms list`; its settings are at the end.
policy = {policy}
seed = 0

# E, the upload bandwidth per exchange: a share of the summed budgets, or bytes such as "64MiB".
bandwidth = "100%"

# n, the samples between two exchanges.
interval = {interval}

# T, the horizon in samples: the server stops there, and rates that are "tuned" or over sqrt(T) depend on it.
# Without it, the fleet runs until it is stopped.
{rounds}

# Without a horizon, the samples of the first stretch of the doubling trick, for such rates: stretches of this many
# samples, twice, four times as many, ..., at the beginning of each of which the policy starts anew.
{doubling}

# Seconds for a device to process the samples of an exchange, and additional seconds for messages in transit.
deadline = 60
travel = 60

# The share of its devices whose answers close an exchange; 1 waits for all of them, until the deadline. Late answers
# count in a later exchange, if they arrive at most `staleness` exchanges later.
quorum = {quorum}
staleness = {staleness}

# Largest norm of an update, relative to the norm of the parameters that it updates.
largest_update = 1.0

# How the updates of a model become one: "sum", or robustly, against hostile devices: "clipped", "trimmed-mean" or
# "median" (docs/security.md).
aggregation = "sum"

# How many earlier versions of the dictionary are kept for a rollback.
keep = 10

# Who watches this fleet: a page, /metrics for Prometheus and /healthz (docs/deploy.md). `ofms deploy watch` opens it.
# Port 0: none. `names`: host names, besides addresses and localhost, by which it may be asked for.
[watch]
host = "127.0.0.1"
port = 9095
names = []

[settings]
{settings}"""


_NO_ROUNDS = "# rounds = 100_000"
_NO_DOUBLING = "# doubling = 1000"


class WatchTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where the page, the metrics and the health check are served; port 0 for nowhere."""

    host: Annotated[str, Values("an IP address"), Doc("The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Values("a port up to 65535"), Doc("The port; 0: nothing is served.")] = 0
    names: Annotated[list[str], Doc("Host names, besides addresses and localhost, by which it may be asked for.")] = []

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InvalidInput("watch.port", self.port, "give a port up to 65535, or 0 for none")
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise InvalidInput("watch.host", self.host, "give the address to listen on, such as 127.0.0.1") from None


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`server.toml`."""

    address: Annotated[str, Values("HOST:PORT"), Doc("Where devices reach the server.")]
    models: Annotated[str, Values("a folder, relative to the file"), Doc("The dictionary.")]
    rounds: Annotated[
        Annotated[int, Range(1)] | None,
        Doc("T, the horizon in samples: the server stops there; none: the fleet runs until it is stopped."),
    ] = None
    policy: PolicyName = DEFAULT
    bandwidth: Bandwidth = "100%"
    interval: Interval = 20
    seed: Seed = 0
    deadline: Annotated[
        float, Range(0, above=True), Doc("Seconds for a device to process the samples of an exchange.")
    ] = 60
    travel: Annotated[float, Range(0, above=True), Doc("Further seconds for messages in transit.")] = 60
    quorum: Annotated[
        float,
        Range(0, 1, above=True),
        Doc("The share of its devices whose answers close an exchange; new deployments have 0.8."),
    ] = 1.0
    staleness: Annotated[
        int, Range(0), Doc("How many exchanges later an answer may arrive to count, if `quorum` is below 1.")
    ] = 20
    largest_update: Annotated[
        float,
        Range(0, above=True),
        Doc("The largest norm of an update, relative to that of the parameters that it updates; others are refused."),
    ] = 1.0
    aggregation: AggregationName = None
    keep: Annotated[int, Range(1), Doc("How many earlier versions of the dictionary are kept for a rollback.")] = 10
    watch: Annotated[WatchTable, Doc("Where the fleet can be watched: a page, /metrics and /healthz.")] = WatchTable()
    doubling: Doubling = None
    settings: Annotated[dict[str, Any], Doc("Settings of the policy.")] = {}
    trust: Annotated[TrustTable, Doc("Packages whose code may be imported, and their folders.")] = TrustTable((), ())

    def __post_init__(self) -> None:
        check_settings(self)
        Aggregation.of(self.aggregation)
        split_address(self.address)

    def policy_settings(self, trust: Trust) -> Any:
        """All settings of the policy, typed; rejects names and types of values that it does not have."""
        known = setting_names(self.policy, trust)
        for name in sorted(self.settings.keys() - known):
            raise InvalidInput(
                "settings", name, f"policy {self.policy} has no such setting; {suggest(name, sorted(known))}"
            )
        return convert(self.settings, settings_type(self.policy, trust))

    def trusted(self, folder: Path) -> Trust:
        """The packages whose factories and policies the server uses; their folders are relative to `server.toml`."""
        return Trust(self.trust.packages, tuple(str(folder / each) for each in self.trust.folders))


class Deployment:
    """Configuration and devices of a deployment; `complaint` says why the last valid devices are used, if they are."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.config = read_config(self.folder)
        self.roster, self.complaint = read_last_roster(self.folder)
        if not self.roster.devices:
            command = shlex.join(["ofms", "deploy", "keys", str(folder), "--device", "NAME=BUDGET"])
            raise InvalidInput("devices", 0, f"add one: {command}")

    def coordinator(self, beginning: Beginning | None = None) -> Coordinator:
        """A coordinator before the first exchange, for the devices with which it began; for these if it begins now."""
        trust = self.config.trusted(self.folder)
        dictionary = Dictionary.read(self.folder / self.config.models, trust=trust)
        largest = int(dictionary.catalogue().storage.max())
        budgets = self.budgets(largest)
        members = [client for client, device in enumerate(self.roster.devices) if not device.revoked]
        if beginning is not None:
            self._require_same(beginning, budgets)
            budgets, members = np.array(beginning.budgets, dtype=np.int64), beginning.members
        config = self.config
        config.policy_settings(trust)
        return Coordinator(
            dictionary,
            budgets=budgets,
            members=members or range(len(budgets)),
            bandwidth=config.bandwidth,
            rounds=config.rounds,
            interval=config.interval,
            doubling=config.doubling,
            policy=config.policy,
            settings=config.settings,
            seed=config.seed,
            largest_update=config.largest_update,
            staleness=config.staleness,
            aggregation=config.aggregation,
            trust=trust,
            graphs=partial(read_graphs, self.folder / GRAPHS),
        )

    def budgets(self, largest: int) -> Integers:
        """[N] the devices' budgets in bytes."""
        return np.concatenate(
            [parse_budgets(device.budget, largest=largest, clients=1) for device in self.roster.devices]
        )

    def added_models(self, names: Sequence[str], task: str) -> list[Model]:
        """Models that were added since the deployment began."""
        trust = self.config.trusted(self.folder)
        return [model for name in names for model in read_models(self.folder / ADDED / name, trust, task)]

    def _require_same(self, beginning: Beginning, budgets: Integers) -> None:
        if budgets[: len(beginning.budgets)].tolist() != beginning.budgets:
            remedy = "a device's budget has changed; restore it, and change it with `ofms deploy set --budget`"
            raise InvalidInput("checkpoint", self.folder / DEVICES, remedy)


def filled_template(config: ServerConfig) -> str:
    """A new `server.toml`, with its comments."""
    return TEMPLATE.format(
        address=json.dumps(config.address),
        models=json.dumps(config.models),
        policy=json.dumps(config.policy),
        interval=config.interval,
        quorum=config.quorum,
        staleness=config.staleness,
        rounds=_NO_ROUNDS if config.rounds is None else f"rounds = {config.rounds}",
        doubling=_NO_DOUBLING if config.doubling is None else f"doubling = {config.doubling}",
        settings=tomli_w.dumps(without_nothing(config.settings)),
    )


def read_config(folder: Path) -> ServerConfig:
    """Read `server.toml`."""
    return read_toml(folder / SERVER, ServerConfig)


def write_config(folder: Path, config: ServerConfig) -> None:
    """Write `server.toml`; None values are omitted, because TOML has no null."""
    write_whole(folder / SERVER, tomli_w.dumps(without_nothing(msgspec.to_builtins(config))).encode())
