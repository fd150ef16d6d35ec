"""The configuration of a run, and its file `config.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli_w

from ofms.core.attacks import Attack
from ofms.core.choices import suggest
from ofms.core.declared import Doc
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.robust import Aggregation
from ofms.core.schedule import Schedule
from ofms.data.table import TableSource
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.registry import build_policy, settings_type
from ofms.policies.settings import check_settings, identifying
from ofms.runs.loading import available, load_experiment, load_preset
from ofms.runs.schemas import (
    AggregationName,
    AttackName,
    Bandwidth,
    Budget,
    Clients,
    DatasetName,
    Device,
    Doubling,
    DriftKind,
    EventTable,
    Experiment,
    History,
    Interval,
    ModelsFolder,
    PolicyName,
    PresetName,
    Rounds,
    Seed,
    Shards,
    TrustTable,
)
from ofms.runs.units import named_budgets, parse_bandwidth, parse_budgets
from ofms.storage.parsing import parse_toml
from ofms.storage.schema import convert

__all__ = [
    "RUN_FIELDS",
    "Experiment",
    "RunConfig",
    "available",
    "load_experiment",
    "load_preset",
    "load_run",
    "run_of",
    "without_nothing",
]

FORMAT = "ofms-run/2"
_MOST_SAMPLES = 10**10


class RunConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The resolved configuration of a run: sufficient to repeat it from any folder, with absolute paths."""

    experiment: Annotated[str, Doc("The name of an experiment, or the path of its TOML file.")]
    dataset: DatasetName = None
    stream: Annotated[TableSource | None, Doc("Your own stream instead of a dataset.")] = None
    policy: PolicyName
    preset: PresetName
    seed: Seed
    clients: Clients
    rounds: Rounds
    interval: Interval
    budget: Budget
    bandwidth: Bandwidth
    models: ModelsFolder = None
    dtype: Annotated[Literal["float32", "float64"], Doc("The type of numbers in which models compute.")] = "float32"
    hindsight: Annotated[
        bool, Doc("Whether all models are evaluated on all samples, which regret and the best model need.")
    ] = True
    device: Device = None
    history: History = 10
    drift: DriftKind = None
    loopback: Annotated[Literal[True] | None, Doc("Run client by client through messages.")] = None
    save_models: Annotated[Literal[True] | None, Doc("Leave the fine-tuned dictionary in the run's folder.")] = None
    trust: Annotated[TrustTable | None, Doc("Packages whose code the run imports, and their folders.")] = None
    events: Annotated[tuple[EventTable, ...] | None, Doc("What changes during the run.")] = None
    doubling: Doubling = None
    shards: Shards = None
    aggregation: AggregationName = None
    attack: AttackName = None
    settings: Annotated[dict[str, Any], Doc("All settings of the policy that are not none.")] = {}

    @property
    def title(self) -> str:
        """The experiment's name; for a TOML file, the file's name."""
        return Path(self.experiment).stem if self.experiment.endswith(".toml") else self.experiment

    def trusted(self) -> Trust:
        """The packages whose code the run imports."""
        return NO_TRUST if self.trust is None else self.trust.record()

    def policy_settings(self) -> Any:
        """The settings as the policy's dataclass; rejected if one is out of range."""
        settings = convert(self.settings, settings_type(self.policy, self.trusted()))
        check_settings(settings)
        return settings

    def fleet(self, catalogue: Catalogue, names: Sequence[str] = ()) -> Fleet:
        """The configured fleet, with costs in bytes; `names` are the clients', by which budgets may be given."""
        largest = int(catalogue.storage.max())
        if "=" in self.budget and not names and self.stream is not None:
            names = self.stream.read(self.rounds).names
        budgets = parse_budgets(self.budget, largest=largest, clients=self.clients, names=names)
        bandwidth = parse_bandwidth(self.bandwidth, largest=largest, budgets=budgets)
        return Fleet(catalogue, budgets, bandwidth, Schedule(self.rounds, self.interval))

    def policy_for(self, fleet: Fleet) -> Policy:
        """The configured policy, for the configured fleet."""
        built = build_policy(self.policy, self.policy_settings(), fleet, self.trusted())
        return replace(built, aggregation=Aggregation.of(self.aggregation))

    def attacked(self) -> Attack | None:
        """What hostile clients upload."""
        return None if self.attack is None else Attack.of(self.attack)

    def identity(self) -> dict[str, Any]:
        """Everything that determines the run's figures except the content of its files, wherever these are."""
        values = without_nothing(msgspec.to_builtins(self))
        if self.experiment.endswith(".toml"):
            values["experiment"] = Path(self.experiment).name
        if self.stream is not None:
            values["stream"]["file"] = Path(self.stream.file).name
        values["settings"] = identifying(values["settings"], settings_type(self.policy, self.trusted()))
        return {key: value for key, value in values.items() if key not in ("models", "save_models", "trust")}

    def to_toml(self) -> str:
        """The content of a run's `config.toml`."""
        return tomli_w.dumps({"format": FORMAT} | without_nothing(msgspec.to_builtins(self)))


RUN_FIELDS = frozenset(RunConfig.__struct_fields__) - {
    *("settings", "experiment", "dataset", "stream", "policy", "loopback", "save_models", "trust")
}


def load_run(path: str) -> RunConfig | None:
    """The configuration of an earlier run from its `config.toml`; None for any other file.

    No plug-in is imported: settings are checked when the run is repeated.
    """
    if not path.endswith(".toml"):
        return None
    try:
        values = parse_toml(Path(path).read_bytes())
    except (OSError, ValueError):
        return None
    # The first format has no `format` field.
    if "experiment" not in values and "format" not in values:
        return None
    found = values.pop("format", FORMAT)
    if found != FORMAT:
        raise InvalidInput("format", found, f"{path}: this version reads up to {FORMAT}; upgrade ofms")
    return run_of(values)


def run_of(fields: dict[str, Any]) -> RunConfig:
    """The configuration with some fields replaced, checked except for the settings of its policy."""
    if isinstance(fields.get("budget"), dict):
        fields["budget"] = named_budgets(fields["budget"])
    elif isinstance(fields.get("budget"), list | tuple):
        fields["budget"] = ",".join(map(str, fields["budget"]))
    for key in ("budget", "bandwidth", "models"):
        fields[key] = None if fields.get(key) is None else str(fields[key])
    config = _placed(convert({key: value for key, value in fields.items() if value is not None}, RunConfig))
    check_settings(config)
    Aggregation.of(config.aggregation)
    config.attacked()
    if config.preset not in available("presets"):
        raise InvalidInput("preset", config.preset, suggest(config.preset, available("presets")))
    if config.clients * config.rounds > _MOST_SAMPLES:
        samples = config.clients * config.rounds
        raise InvalidInput("clients × rounds", samples, f"at most {_MOST_SAMPLES:,} samples fit; lower one of them")
    return config


def _placed(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths; relative ones are resolved against the current folder."""
    experiment, models, stream = config.experiment, config.models, config.stream
    if experiment.endswith(".toml"):
        experiment = str(Path(experiment).absolute())
    if models is not None:
        models = str(Path(models).absolute())
    if stream is not None:
        stream = replace(stream, file=str(Path(stream.file).absolute()))
    return msgspec.structs.replace(config, experiment=experiment, models=models, stream=stream)


def without_nothing(values: dict[str, Any]) -> dict[str, Any]:
    """Nested tables without the keys that are None: TOML has no null."""
    return {
        key: without_nothing(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
