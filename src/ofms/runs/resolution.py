"""Resolve a configuration: defaults < preset < experiment < caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from ofms.core.choices import admits_none, suggest
from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.registry import settings_type, trust_in
from ofms.runs.config import RUN_FIELDS, RunConfig, run_of
from ofms.runs.loading import load_preset, require_settings
from ofms.runs.schemas import Experiment


def resolve(
    experiment: Experiment,
    name: str,
    *,
    task: str,
    policy: str | None = None,
    trust: Trust = NO_TRUST,
    given: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Combine the layers; only the tables of the selected policy apply.

    Parameters
    ----------
    policy
        Named by the caller, and therefore trusted; None for that of the experiment, which its file must trust if it is
        not built in.
    trust
        Packages that the caller trusts, in addition to those of the experiment's file.
    given
        Fields of the run and settings of the policy, by name. A field that is None counts as not given.
    """
    given = dict(given or {})
    trust = experiment.trusted() | trust | trust_in(policy or "")
    policy = experiment.policy if policy is None else policy
    preset_name = experiment.preset if given.get("preset") is None else str(given["preset"])
    preset = load_preset(preset_name)
    require_settings(f"policies.{policy}", experiment.policies.get(policy, {}), policy, trust)
    settings: dict[str, Any] = {}
    for tables in (preset.policies, getattr(preset, task), experiment.policies):
        settings |= {key: _value(value) for key, value in tables.get(policy, {}).items()}
    fields: dict[str, Any] = {
        "experiment": name,
        "dataset": experiment.dataset,
        "stream": None if experiment.stream is None else msgspec.to_builtins(experiment.stream),
        "policy": policy,
        "preset": preset_name,
        "seed": experiment.seed,
        "history": experiment.history,
        "clients": experiment.clients,
        "rounds": experiment.rounds,
        "interval": experiment.interval,
        "drift": experiment.drift,
        "events": msgspec.to_builtins(experiment.events) or None,
        "doubling": experiment.doubling,
        "aggregation": experiment.aggregation,
        "attack": experiment.attack,
        "budget": experiment.budget,
        "bandwidth": experiment.bandwidth,
        "models": experiment.models,
        "trust": _table(trust),
        "settings": settings,
    }
    return _changed(fields, given, trust)


def change(
    config: RunConfig, given: Mapping[str, Any], policy: str | None = None, trust: Trust = NO_TRUST
) -> RunConfig:
    """An earlier run's configuration with some fields and settings replaced."""
    if policy is not None and policy != config.policy:
        raise InvalidInput("policy", policy, f"the run used {config.policy}; start from an experiment instead")
    trust = config.trusted() | trust | trust_in(policy or "")
    return _changed(msgspec.to_builtins(config) | {"trust": _table(trust)}, given, trust)


def _changed(fields: dict[str, Any], given: Mapping[str, Any], trust: Trust) -> RunConfig:
    """The configuration of a run with the caller's fields and all settings of its policy."""
    policy = fields["policy"]
    hints = get_type_hints(settings_type(policy, trust))
    for key, value in given.items():
        if key in RUN_FIELDS:
            fields[key] = fields.get(key) if value is None else value
        elif key not in hints:
            known = sorted(hints.keys() | RUN_FIELDS - {"models"})
            raise InvalidInput("set", key, f"policy {policy} has no such setting; {suggest(key, known)}")
        elif value is not None or admits_none(hints[key]):
            fields["settings"][key] = _value(value)
    config = run_of(fields)
    written_out = {key: value for key, value in asdict(config.policy_settings()).items() if value is not None}
    return msgspec.structs.replace(config, settings=written_out)


def _table(trust: Trust) -> dict[str, Any] | None:
    """A run's `[trust]`; None if nothing is trusted."""
    if not trust.packages:
        return None
    return {"packages": trust.packages, "folders": [str(Path(folder).absolute()) for folder in trust.folders]}


def _value(value: Any) -> Any:
    """Map "none" to None: TOML and the command line have no null."""
    return None if isinstance(value, str) and value.lower() == "none" else value
