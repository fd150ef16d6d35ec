"""Load experiments and presets from their files."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, Trust
from ofms.policies import MODULES
from ofms.policies.registry import require_policy_name, setting_names
from ofms.runs.schemas import Experiment, PolicyTables, Preset
from ofms.storage.parsing import parse_toml
from ofms.storage.schema import convert

_PACKAGE = "ofms.runs"


def load_experiment(name: str) -> Experiment:
    """A built-in experiment by name, or your own from a TOML file."""
    if not name.endswith(".toml"):
        experiment = convert(_packaged("experiments", name), Experiment)
    else:
        try:
            content = Path(name).read_bytes()
        except OSError as error:
            raise InvalidInput("experiment", name, f"{error.strerror}; name an existing file") from None
        values = _parsed(content, name)
        if "settings" in values:
            remedy = "settings belong to a policy; write a table per policy, such as [policies.ofms-ft]"
            raise InvalidInput("settings", name, remedy)
        experiment = _placed(convert(values, Experiment), name)
    require_policy_name("policy", experiment.policy)
    require_tables("policies", experiment.policies)
    return experiment


def load_preset(name: str) -> Preset:
    """A built-in preset."""
    preset = convert(_packaged("presets", name), Preset)
    for part in ("policies", "classification", "regression"):
        require_tables(part, getattr(preset, part))
    return preset


def available(folder: str) -> list[str]:
    """The names of the built-in `experiments` or `presets`."""
    files = resources.files(_PACKAGE).joinpath(folder).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def require_tables(field: str, tables: PolicyTables) -> None:
    """Reject a table of an unknown policy, and an unknown setting of a built-in one.

    User-defined policies are not imported: their tables are checked when they run.
    """
    for policy, settings in tables.items():
        require_policy_name(field, policy)
        if policy in MODULES:
            require_settings(f"{field}.{policy}", settings, policy)


def require_settings(field: str, settings: dict[str, Any], policy: str, trust: Trust = NO_TRUST) -> None:
    """Reject a setting that a policy does not have."""
    known = setting_names(policy, trust)
    for name in sorted(settings.keys() - known):
        raise InvalidInput(field, name, f"policy {policy} has no such setting; {suggest(name, sorted(known))}")


def _placed(experiment: Experiment, name: str) -> Experiment:
    """A user-defined experiment; its relative paths are resolved against its file's folder."""
    if (experiment.dataset is None) == (experiment.stream is None):
        raise InvalidInput("experiment", name, "name a dataset, or describe a stream of your own in [stream]")
    if experiment.stream is None and (experiment.clients is None or experiment.rounds is None):
        raise InvalidInput("experiment", name, "set clients and rounds for the dataset")
    here = Path(name).absolute().parent
    stream, models, trust = experiment.stream, experiment.models, experiment.trust
    if stream is not None:
        stream = replace(stream, file=str(here / stream.file))
    if models is not None:
        models = str(here / models)
    if trust is not None:
        trust = msgspec.structs.replace(trust, folders=tuple(str(here / folder) for folder in trust.folders))
    return msgspec.structs.replace(experiment, stream=stream, models=models, trust=trust)


def _packaged(folder: str, name: str) -> dict[str, Any]:
    if name not in available(folder):
        own = ", or a TOML file: your own, or config.toml of a run" if folder == "experiments" else ""
        raise InvalidInput(folder.removesuffix("s"), name, suggest(name, available(folder)) + own)
    return _parsed(resources.files(_PACKAGE).joinpath(folder, f"{name}.toml").read_bytes(), f"{name}.toml")


def _parsed(content: bytes, source: str) -> dict[str, Any]:
    try:
        return parse_toml(content)
    except ValueError as error:
        raise InvalidInput("file", source, str(error)) from None
