"""The report: one self-contained HTML page of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.words import counted
from ofms.drawing.tables import Table
from ofms.report import charts
from ofms.report.heatmaps import shares_chart, weights_chart
from ofms.runs.folder import PAGE
from ofms.runs.formatting import (
    DRIFT_HEADER,
    format_bound,
    format_drift,
    format_number,
    format_regret,
    format_score,
    scale,
)
from ofms.runs.loading import load_preset
from ofms.runs.result import Result
from ofms.runs.units import human_bytes
from ofms.runs.warning_lines import mixed_bounds
from ofms.storage.files import require_writable, write_whole

NAME = PAGE
_MOST_CLIENTS = 10


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    names: Sequence[str] = (),
    tables: Sequence[Table] = (),
    warnings: Sequence[str] | None = None,
) -> Path:
    """Write the page of one or several runs to `out`; by default into a single run's folder, or the current one.

    Without `names`, runs are named by their policies if these differ, otherwise by their folders. Further `tables` come
    after the runs' figures; `warnings` replace those of the runs, if there were more runs than these.
    """
    if not folders:
        raise InvalidInput("run", "none", "name at least one run's folder")
    runs = [Result.load(folder) for folder in folders]
    for run, folder in zip(runs, folders, strict=True):
        if run.folder is None:
            raise InvalidInput("run", folder, "a cell stores too little for a page; name a run's folder")
    metrics = {run.metric for run in runs}
    if len(metrics) > 1:
        raise InvalidInput(
            "run", folders[-1], f"runs measured by {' and '.join(sorted(metrics))} cannot share a page; name one kind"
        )
    path = out if out is not None else (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    require_writable(path.parent)
    _require_page(path)
    if names:
        named = [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
    else:
        named = _with_distinct_names(runs)
    write_whole(path, render(named, tables, warnings).encode())
    return path


def _require_page(path: Path) -> None:
    """Reject a file that is not a page, which writing one would destroy."""
    start = path.read_bytes()[:64].lower() if path.is_file() else b""
    if start and not start.startswith(b"<!doctype html"):
        raise InvalidInput("out", path, "it is a file of another kind; name another")


def render(runs: Sequence[Result], tables: Sequence[Table] = (), warnings: Sequence[str] | None = None) -> str:
    """The page as HTML."""
    try:
        from jinja2 import Environment
    except ImportError:
        raise InvalidInput("report", NAME, "it requires Jinja2: pip install 'ofms[experiments]'") from None
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files("ofms.report").joinpath("report.html.j2").read_text("utf-8"))
    first = runs[0].config
    one = len(runs) == 1
    size = f"{counted(first.clients, 'client')}, {counted(first.rounds, 'round')}"
    subtitle = f"{first.experiment}: {size}" if one else f"{len(runs)} runs"
    return template.render(
        style=resources.files("ofms.drawing").joinpath("page.css").read_text("utf-8"),
        title=f"{first.policy} on {first.experiment}" if one else "Runs side by side",
        subtitle=subtitle + (f"{_preset(runs[0])}, seed {first.seed}" if one else ""),
        warnings=_warnings(runs) if warnings is None else [*warnings, *mixed_bounds(runs)],
        headline=headline(runs[0]),
        tables=[figures_table(runs), *tables],
        sections=_sections(runs),
        weights=[_weights(run) for run in runs],
        runs=[_facts(run) for run in runs],
    )


def _warnings(runs: Sequence[Result]) -> list[str]:
    """The warnings of each run, and those about runs side by side."""
    own = [(run.name, line) for run in runs for line in run.figures.get("warnings", ())]
    return [line if len(runs) == 1 else f"{name}: {line}" for name, line in own] + mixed_bounds(runs)


def _preset(run: Result) -> str:
    """The preset, if it has settings for the run's policy."""
    preset, policy = load_preset(run.config.preset), run.config.policy
    tables = (preset.policies, preset.classification, preset.regression)
    if not any(policy in table for table in tables):
        return ""
    task = preset.classification if run.metric == "accuracy" else preset.regression
    its = preset.policies.get(policy, {}) | task.get(policy, {})
    changed = any(run.config.settings.get(name) != value for name, value in its.items())
    return f", preset {run.config.preset}" + (", changed" if changed else "")


def headline(run: Result) -> list[tuple[str, str]]:
    """The most important figures of a run."""
    figures, config = run.figures, run.config
    factor, unit = scale(run.metric)
    shown = [(f"{run.metric}, mean ± std over clients", format_score(run.score[run.took_part], run.metric))]
    if figures["regret"] is not None:
        shown.append(("average regret", format_regret(run)))
        shown.append(("its bound", format_bound(run)))
        shown.append(("best model in hindsight", f"{_scaled(figures['best_in_hindsight'], factor)} {unit}"))
    if run.drifts:
        shown += zip(DRIFT_HEADER, format_drift(run), strict=True)
        shown.append(("best model of each phase", f"{_scaled(figures['best_of_phases'], factor)} {unit}"))
    # Runs of earlier versions may not have it.
    if (frozen := figures.get("frozen")) is not None:
        shown.append(("same choices, frozen dictionary", f"{format_number(factor * frozen)} {unit}"))
    rounds = run.clients.get("rounds", np.full(config.clients, config.rounds))
    exchanges = int((-(-rounds // config.interval)).sum())
    shown.append(("down, per client and exchange", human_bytes(figures["bytes_down"] / exchanges)))
    shown.append(("up, per client and exchange", human_bytes(figures["bytes_up"] / exchanges)))
    share = run.clients["most_held"] / run.clients["budget"]
    shown.append(("most memory used, of the budget", f"{100 * float(share.max()):.0f} %"))
    return shown


def figures_table(runs: Sequence[Result]) -> Table:
    """The runs' figures side by side."""
    metric = runs[0].metric
    factor, unit = scale(metric)
    drifts = any(run.drifts for run in runs)
    rows = [
        [
            run.name,
            format_score(run.score[run.took_part], metric).removesuffix(f" {unit}"),
            *(_scaled(run.figures.get(key), factor) for key in ("frozen", "random_model", "best_in_hindsight")),
            format_regret(run),
            format_bound(run),
            *(format_drift(run) if drifts else []),
            human_bytes(run.figures["bytes_down"]),
            human_bytes(run.figures["bytes_up"]),
            f"{run.figures['seconds']:.1f}",
        ]
        for run in runs
    ]
    header = ["run", f"{metric} ({unit})", "frozen", "random model", "best in hindsight", "average regret"]
    header += ["its bound", *(DRIFT_HEADER if drifts else []), "down", "up", "seconds"]
    notes = ["Mean ± standard deviation over clients. Frozen: the same choices on the initial dictionary."]
    reasons = sorted({str(reason) for run in runs if (reason := run.figures.get("not_covered"))})
    if reasons:
        notes.append(f"Missing bounds: {'; '.join(reasons)}.")
    if len(runs) > 1:
        best = max if metric == "accuracy" else min
        notes.insert(0, f"Best mean: {best(runs, key=lambda run: run.mean).name}.")
    return Table("runs", "Figures", header, rows, notes=notes)


def _sections(runs: Sequence[Result]) -> list[dict[str, Any]]:
    """The charts over rounds."""
    return [
        {
            "title": "Over rounds",
            "text": "Bands: one standard deviation over clients for the metric, 10 to 90 % of the clients for regret."
            if len(runs) <= charts.MOST_BANDS
            else "Means over clients.",
            "charts": [
                ("Accuracy" if runs[0].metric == "accuracy" else "Squared error", charts.metric_chart(runs)),
                ("Regret", charts.regret_chart(runs)),
                ("The last ten rounds, and changes of the stream", charts.drift_chart(runs)),
            ],
        },
        {
            "title": "Fine-tuning",
            "text": "Compared with the same choices on the initial dictionary (with frozen models, a policy would make "
            "others); and the number of upload groups.",
            "charts": [
                ("Gain over the same choices, frozen", charts.gain_chart(runs)),
                ("Upload groups", charts.groups_chart(runs)),
            ],
        },
        {
            "title": "Memory and bandwidth",
            "text": "Models are sent only to clients that do not hold their newest version.",
            "charts": [("Memory", charts.memory_chart(runs)), ("Bytes", charts.bytes_chart(runs))],
        },
    ]


def _weights(run: Result) -> dict[str, Any]:
    recorded = run.history["probability"].shape[1] if "probability" in run.history else 0
    return {
        "name": run.name,
        "shares": shares_chart(run),
        "clients": [
            {"name": run.client_names[client], "chart": weights_chart(run, client)}
            for client in range(min(recorded, _MOST_CLIENTS))
        ],
    }


def _facts(run: Result) -> dict[str, Any]:
    factor, unit = scale(run.metric)
    held, chosen, alone = (
        run.clients[name][run.took_part].mean(axis=0)
        if name in run.clients
        else np.full(len(run.figures["models"]), np.nan)
        for name in ("held_share", "prediction_share", "model_score")
    )
    return {
        "name": run.name,
        "metric": run.metric,
        "models": [
            [name, f"{100 * often:.1f} %", f"{100 * predicted_share:.1f} %", f"{_finite(score, factor)} {unit}"]
            for name, often, predicted_share, score in zip(run.figures["models"], held, chosen, alone, strict=True)
        ],
        "toml": run.config.to_toml(),
        "revision": run.figures["revision"],
    }


def _with_distinct_names(runs: list[Result]) -> list[Result]:
    """Name runs by their policies if these differ, otherwise by their folders, with numbers for repeated names."""
    policies = [run.config.policy for run in runs]
    if len(set(policies)) == len(runs) > 1:
        return [replace(run, name=run.config.policy) for run in runs]
    seen: dict[str, int] = {}
    named = []
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        name = run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})"
        named.append(replace(run, name=name))
    return named


def _finite(value: float, factor: float) -> str:
    return format_number(factor * value) if np.isfinite(value) else "–"


def _scaled(value: float | None, factor: float) -> str:
    return "–" if value is None else format_number(factor * value)
