"""Configuration: default < preset < experiment < what the caller sets."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import tomli_w

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.data.table import TableSource
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet
from ofms.policies.registry import setting_names, settings_type
from ofms.runs.units import parse_bandwidth, parse_budgets

_PACKAGE = "ofms.runs"
T = TypeVar("T")


class Network(msgspec.Struct, forbid_unknown_fields=True):
    """One kind of network of a dictionary; each is trained on each of the dataset's training sets."""

    name: str
    architecture: str
    options: dict[str, Any]
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.01
    momentum: float = 0.9
    initialisation: Literal["default", "glorot-uniform", "glorot-normal", "uniform", "normal"] = "default"


class Pretraining(msgspec.Struct, forbid_unknown_fields=True):
    """How an experiment's dictionary is made; `common` holds what its networks share."""

    epochs: int
    batch_size: int
    networks: list[dict[str, Any]]
    common: dict[str, Any] = {}
    seed: int = 0

    def kinds(self) -> list[Network]:
        """The networks, with what they share filled in."""
        return [_convert(self.common | network, Network) for network in self.networks]


class Experiment(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An experiment's file: on one of our datasets, or on a stream of one's own."""

    summary: str
    dataset: str | None = None
    stream: TableSource | None = None
    clients: int | None = None
    rounds: int | None = None
    budget: str
    bandwidth: str
    preset: str = "published"
    interval: int = 1
    models: str | None = None
    settings: dict[str, Any] = {}
    pretraining: Pretraining | None = None


class Preset(msgspec.Struct, forbid_unknown_fields=True):
    """A preset's file: settings of policies, and those that depend on the task."""

    summary: str
    settings: dict[str, Any] = {}
    classification: dict[str, Any] = {}
    regression: dict[str, Any] = {}


class RunConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A run, resolved: enough to repeat it. `loopback` is there for runs client by client alone."""

    experiment: str
    dataset: str | None = None
    stream: TableSource | None = None
    policy: str
    preset: str
    seed: int
    clients: int
    rounds: int
    interval: int
    budget: str
    bandwidth: str
    models: str | None = None
    dtype: Literal["float32", "float64"] = "float32"
    hindsight: bool = True
    history: int = 10
    loopback: Literal[True] | None = None
    settings: dict[str, Any] = {}

    def policy_settings(self) -> Any:
        """The settings as the policy's own record."""
        try:
            return msgspec.convert(self.settings, settings_type(self.policy))
        except msgspec.ValidationError as error:
            raise _invalid(error, self.settings) from None

    def fleet(self, catalogue: Catalogue) -> Fleet:
        """The fleet that it describes, in bytes."""
        largest = int(catalogue.storage.max())
        budgets = parse_budgets(self.budget, largest=largest, clients=self.clients)
        bandwidth = parse_bandwidth(self.bandwidth, largest=largest, budgets=budgets)
        return Fleet(catalogue, budgets, bandwidth, Schedule(self.rounds, self.interval))

    def to_toml(self) -> str:
        return tomli_w.dumps(without_nothing(msgspec.to_builtins(self)))


RUN_FIELDS = frozenset(RunConfig.__struct_fields__) - {
    *("settings", "experiment", "dataset", "stream", "policy", "loopback")
}
_MOST_SAMPLES = 10**10


def resolve(
    experiment: Experiment,
    name: str,
    *,
    task: str,
    policy: str = "ofms-ft",
    given: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Put the layers together.

    Parameters
    ----------
    given
        What the caller sets: fields of the run and settings of the policy, by name.
    """
    known = setting_names(policy)
    given = {key: value for key, value in (given or {}).items() if key not in RUN_FIELDS or value is not None}
    for key in experiment.settings.keys() - _all_settings():
        raise InvalidInput("settings", key, f"{name}: no policy has such a setting")
    preset_name = str(given.get("preset", experiment.preset))
    preset = load_preset(preset_name)
    settings: dict[str, Any] = {}
    for layer in (preset.settings, getattr(preset, task), experiment.settings):
        settings |= {key: _said(value) for key, value in layer.items() if key in known}
    for key, value in given.items():
        if key in RUN_FIELDS:
            continue
        if key not in known:
            raise _unknown(key, policy)
        settings[key] = _said(value)
    fields: dict[str, Any] = {
        "experiment": name,
        "dataset": experiment.dataset,
        "stream": None if experiment.stream is None else msgspec.to_builtins(experiment.stream),
        "policy": policy,
        "preset": preset_name,
        "seed": 0,
        "clients": experiment.clients,
        "rounds": experiment.rounds,
        "interval": experiment.interval,
        "budget": experiment.budget,
        "bandwidth": experiment.bandwidth,
        "models": experiment.models,
        "settings": settings,
    }
    fields |= {key: value for key, value in given.items() if key in RUN_FIELDS}
    return _checked(fields)


def load_run(path: str) -> RunConfig | None:
    """The configuration of an earlier run from its `config.toml`; None for any other file."""
    if not path.endswith(".toml"):
        return None
    try:
        values = tomllib.loads(Path(path).read_bytes().decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    return _checked(values) if "experiment" in values else None


def change(config: RunConfig, given: Mapping[str, Any], policy: str | None) -> RunConfig:
    """An earlier run's configuration with some fields and settings set anew."""
    if policy is not None and policy != config.policy:
        raise InvalidInput("policy", policy, f"the run was of {config.policy}; start from an experiment instead")
    fields = msgspec.to_builtins(config)
    known = setting_names(config.policy)
    for key, value in given.items():
        if key in RUN_FIELDS:
            fields[key] = fields[key] if value is None else value
        elif key in known:
            fields["settings"][key] = None if isinstance(value, str) and value.lower() == "none" else value
        else:
            raise _unknown(key, config.policy)
    return _checked(fields)


def _checked(fields: dict[str, Any]) -> RunConfig:
    """A run's configuration, with all of its policy's settings written out."""
    for key in ("budget", "bandwidth", "models"):
        fields[key] = None if fields.get(key) is None else str(fields[key])
    config = _convert(fields, RunConfig)
    for key in ("clients", "rounds", "interval"):
        if getattr(config, key) < 1:
            raise InvalidInput(key, getattr(config, key), "give at least 1")
    if config.history < 0:
        raise InvalidInput("history", config.history, "give how many clients to follow round by round, 0 for none")
    if not 0 <= config.seed < 2**63:
        raise InvalidInput("seed", config.seed, "give a whole number from 0 to 2⁶³ - 1")
    if config.clients * config.rounds > _MOST_SAMPLES:
        raise InvalidInput("clients × rounds", config.clients * config.rounds, f"at most {_MOST_SAMPLES:,} samples fit")
    written_out = {key: value for key, value in asdict(config.policy_settings()).items() if value is not None}
    return msgspec.structs.replace(config, settings=written_out)


def _said(value: Any) -> Any:
    """A setting as it was written: TOML and the command know no null, and say none."""
    return None if isinstance(value, str) and value.lower() == "none" else value


def without_nothing(values: dict[str, Any]) -> dict[str, Any]:
    """Nested tables without the keys that have no value: TOML knows no null."""
    return {
        key: without_nothing(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _unknown(key: str, policy: str) -> InvalidInput:
    names = ", ".join(sorted(setting_names(policy) | RUN_FIELDS - {"models"}))
    return InvalidInput("set", key, f"policy {policy} has no such setting; there are {names}")


def _all_settings() -> frozenset[str]:
    return frozenset[str]().union(*(setting_names(policy) for policy in MODULES))


def load_experiment(name: str) -> Experiment:
    """An experiment that comes with the package, or a TOML file of one's own."""
    if not name.endswith(".toml"):
        return _load("experiments", name, Experiment)
    try:
        experiment = _decode(Path(name).read_bytes(), Experiment, name)
    except OSError as error:
        raise InvalidInput("experiment", name, f"{error.strerror}; name an existing file") from None
    return _placed(experiment, name)


def _placed(experiment: Experiment, name: str) -> Experiment:
    """An experiment of one's own, with the paths in it taken from where its file is."""
    if (experiment.dataset is None) == (experiment.stream is None):
        raise InvalidInput("experiment", name, "name a dataset, or describe a stream of your own in [stream]")
    if experiment.stream is None and (experiment.clients is None or experiment.rounds is None):
        raise InvalidInput("experiment", name, "say how many clients and rounds of the dataset")
    here = Path(name).parent
    stream, models = experiment.stream, experiment.models
    if stream is not None:
        stream = replace(stream, file=str(here / stream.file))
    if models is not None:
        models = str(here / models)
    return msgspec.structs.replace(experiment, stream=stream, models=models)


def load_preset(name: str) -> Preset:
    """A preset that comes with the package."""
    preset = _load("presets", name, Preset)
    for layer in (preset.settings, preset.classification, preset.regression):
        for key in layer.keys() - _all_settings():
            raise InvalidInput(f"preset {name}", key, "no policy has such a setting")
    return preset


def available(folder: str) -> list[str]:
    """The names of the package's `experiments` or `presets`."""
    files = resources.files(_PACKAGE).joinpath(folder).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _load(folder: str, name: str, kind: type[T]) -> T:
    if name not in available(folder):
        raise InvalidInput(folder.removesuffix("s"), name, f"use one of {', '.join(available(folder))}")
    content = resources.files(_PACKAGE).joinpath(folder, f"{name}.toml").read_bytes()
    return _decode(content, kind, f"{name}.toml")


def _decode(content: bytes, kind: type[T], source: str) -> T:
    try:
        return _convert(tomllib.loads(content.decode()), kind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("file", source, f"not valid TOML: {error}") from None


def _convert(values: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, values) from None


def _invalid(error: msgspec.ValidationError, values: Mapping[str, Any]) -> InvalidInput:
    """msgspec says "Expected `int`, got `str` - at `$.rounds`"; we name the field and its value."""
    reason, _, path = str(error).partition(" - at `$.")
    field = path.rstrip("`") or "configuration"
    value = values.get(field, "…")
    return InvalidInput(field, value, reason[:1].lower() + reason[1:].replace("`", "'"))
