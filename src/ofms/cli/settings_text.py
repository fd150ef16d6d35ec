"""Settings of policies, experiments, runs and deployments as text and as a page, from their declarations."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ofms.core.declared import Setting, describe, shown
from ofms.core.errors import InvalidInput
from ofms.plugins import NO_TRUST, Trust, is_reference
from ofms.policies import MODULES
from ofms.policies.registry import policy_summary, settings_type, trust_in
from ofms.policies.settings import describe_settings
from ofms.runs.config import RunConfig
from ofms.runs.loading import available, load_experiment, load_preset
from ofms.runs.schemas import EventTable, Experiment, Network, Pretraining

# What is not a policy.
RECORDS = ("run", "experiment", "deployment")
_SERVER = "server.toml"
_WIDTH = 110
_HEAD = """\
# Settings

Every setting of policies, runs, experiments and deployments, from their declarations in the code. `--set
NAME=VALUE` sets one in a command, `ofms.simulate(NAME=VALUE)` in Python, and a table such as `[policies.ofms-ft]`
in an experiment's file. In Python, `policy=ofms.OFMSFT(learning_rate=0.5)` has them as typed options. `ofms list
--settings ofms-ft` prints those of a policy, `ofms list --settings experiment.toml` those of an experiment with its
values, and `ofms list --settings fleet` those of the deployment in that folder. Labels of equations are those of
[algorithm.md](algorithm.md). This page is generated: `ofms list --markdown > docs/settings.md`.

"""


@dataclass(frozen=True)
class Settings:
    """The settings of one thing: a title, what it is, its settings, and lines about presets."""

    title: str
    text: str
    rows: Sequence[Setting]
    notes: Sequence[str] = ()

    def plain(self) -> str:
        """For a terminal."""
        blocks = [f"{self.title}: {self.text}", *map(_block, self.rows), *self.notes]
        return "\n\n".join(blocks)

    def markdown(self) -> str:
        """A section of a page."""
        text = self.text[:1].upper() + self.text[1:].rstrip(".")
        lines = [f"## {self.title}\n", f"{text}.\n", "| setting | meaning | default | values | equation |"]
        lines.append("|---|---|---|---|---|")
        for row in self.rows:
            cells = [f"`{row.name}`", row.meaning, f"`{row.default}`", row.values, row.equation]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]).replace("|  |", "| |") + "\n"


def find_settings(name: str, trust: Trust = NO_TRUST) -> list[Settings]:
    """The settings of a policy, an experiment or a deployment with its values, of `RECORDS`, or `all`."""
    if name == "all":
        return [each for one in (*MODULES, *RECORDS) for each in find_settings(one)]
    if name in MODULES or is_reference(name):
        return [_policy(name, trust | trust_in(name))]
    if name == "run":
        text = "what `ofms run --set`, its options and `ofms.simulate` take besides the policy's settings"
        resolved = dict.fromkeys(Experiment.__struct_fields__, "the experiment's")
        rows = _record(RunConfig, {"experiment": "digits"} | resolved)
        return [Settings("run", text, [row for row in rows if row.name not in ("settings", "trust", "stream")])]
    if name == "experiment":
        return _experiment("experiment", "an experiment's TOML file", None)
    if name == "deployment":
        return _deployment("deployment", None)
    if (folder := _deployment_folder(name)) is not None:
        return _deployment(folder.name, folder)
    if name in available("experiments") or name.endswith(".toml"):
        loaded = load_experiment(name)
        return _experiment(Path(name).name, loaded.summary, loaded)
    known = ", ".join([*MODULES, *available("experiments"), *RECORDS, "all"])
    raise InvalidInput("settings", name, f"use one of {known}, or your own policy, experiment or deployment")


def settings_page() -> str:
    """The page docs/settings.md."""
    return _HEAD + "\n".join(each.markdown() for each in find_settings("all"))


def _policy(name: str, trust: Trust) -> Settings:
    presets = [_preset_line(preset, name) for preset in available("presets")] if name in MODULES else []
    text = policy_summary(name) if name in MODULES else "your own policy"
    return Settings(name, text, describe_settings(settings_type(name, trust)), [line for line in presets if line])


def _preset_line(preset: str, policy: str) -> str:
    """What a preset sets for a policy; empty if it sets nothing."""
    loaded = load_preset(preset)
    parts = [
        (loaded.policies.get(policy, {}), ""),
        (loaded.classification.get(policy, {}), " for classification"),
        (loaded.regression.get(policy, {}), " for regression"),
    ]
    listed = [f"`{key} = {shown(value)}`{where}" for values, where in parts for key, value in values.items()]
    return f"Preset `{preset}`: {', '.join(listed)}." if listed else ""


def _experiment(title: str, text: str, loaded: Experiment | None) -> list[Settings]:
    """An experiment's settings and tables; of a file, those that it has, with its values as defaults."""
    from ofms.data.table import TableSource

    tables: list[tuple[str, str, type[Any]]] = [
        ("stream", "`[stream]` of an experiment: your own samples", TableSource),
        ("events", "each of `[[events]]` of an experiment: what changes during the run", EventTable),
        ("pretraining", "`[pretraining]` of an experiment: how its dictionary is trained", Pretraining),
        ("network", "each of `[[pretraining.networks]]`, and what they share in `[pretraining.common]`", Network),
    ]
    if loaded is None:
        rows = {name: describe_settings(kind) if name == "stream" else _record(kind) for name, _, kind in tables}
    else:
        rows = {"stream": describe(TableSource, vars(loaded.stream))} if loaded.stream is not None else {}
        rows |= {"events": _record(EventTable)} if loaded.events else {}
        if loaded.pretraining is not None:
            rows |= {"pretraining": _record(Pretraining, _values(loaded.pretraining)), "network": _record(Network)}
    others = [Settings(name, about, rows[name]) for name, about, _ in tables if name in rows]
    return [Settings(title, text, _record(Experiment, {} if loaded is None else _values(loaded))), *others]


def _deployment_folder(name: str) -> Path | None:
    """The folder of a deployment, named itself or by its `server.toml`."""
    path = Path(name).parent if Path(name).name == _SERVER else Path(name)
    return path.absolute() if (path / _SERVER).is_file() else None


def _deployment(title: str, folder: Path | None) -> list[Settings]:
    """A deployment's settings; of one in a folder, its values as defaults."""
    from ofms.coordinator.deployment import ServerConfig, WatchTable, read_config

    config = None if folder is None else read_config(folder)
    values: list[dict[str, Any]] = [{}, {}] if config is None else [_values(config), _values(config.watch)]
    return [
        Settings(title, "`server.toml` in a deployment's folder", _record(ServerConfig, values[0])),
        Settings("watch", "`[watch]` of `server.toml`: where the fleet can be watched", _record(WatchTable, values[1])),
    ]


def _values(record: msgspec.Struct) -> dict[str, Any]:
    return {key: getattr(record, key) for key in record.__struct_fields__}


def _record(kind: type[msgspec.Struct], values: Mapping[str, Any] | None = None) -> list[Setting]:
    """The settings of a record, with `values` instead of its defaults."""
    fields = msgspec.structs.fields(kind)
    defaults = {each.name: each.default for each in fields if each.default is not msgspec.NODEFAULT}
    defaults |= {each.name: each.default_factory() for each in fields if each.default_factory is not msgspec.NODEFAULT}
    return describe(kind, defaults | dict(values or {}))


def _block(row: Setting) -> str:
    """A setting in a terminal."""
    lines: Iterable[tuple[str, str]] = (("", row.meaning), ("values: ", row.values), ("equation: ", row.equation))
    wrapped = [
        textwrap.fill(label + text, _WIDTH, initial_indent="    ", subsequent_indent="      ")
        for label, text in lines
        if text
    ]
    return "\n".join([f"{row.name} = {row.default}", *wrapped])
