"""The report: one self-contained page of a run, or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.drawing.tables import Table
from ofms.report import charts
from ofms.report.runs import FinishedRun, read_run
from ofms.runs.units import human_bytes
from ofms.storage.files import require_writable, write_whole

NAME = "report.html"
_MOST_CLIENTS = 10


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of some runs: beside the run for one, into the current folder for several, or to `out`."""
    if not folders:
        raise InvalidInput("run", "none", "there is no run's folder to show; name one")
    runs = [read_run(folder) for folder in folders]
    metrics = {run.metric for run in runs}
    if len(metrics) > 1:
        raise InvalidInput("run", folders[-1], f"runs with {' and '.join(sorted(metrics))} have no page in common")
    path = out if out is not None else (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    require_writable(path.parent)
    write_whole(path, render(_named_apart(runs)).encode())
    return path


def render(runs: Sequence[FinishedRun]) -> str:
    """The page as HTML."""
    try:
        from jinja2 import Environment
    except ImportError:
        raise InvalidInput("report", NAME, "it needs Jinja2: pip install 'ofms[experiments]'") from None
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files("ofms.report").joinpath("report.html.j2").read_text("utf-8"))
    first = runs[0].config
    one = len(runs) == 1
    subtitle = f"{first.experiment}: {first.clients} clients, {first.rounds} rounds" if one else f"{len(runs)} runs"
    return template.render(
        title=f"{first.policy} on {first.experiment}" if one else "Runs side by side",
        subtitle=subtitle + (f", preset {first.preset}, seed {first.seed}" if one else ""),
        headline=headline(runs[0]),
        table=figures_table(runs),
        sections=_sections(runs),
        weights=[_weights(run) for run in runs],
        runs=[_facts(run) for run in runs],
    )


def headline(run: FinishedRun) -> list[tuple[str, str]]:
    """The figures that a reader wants first."""
    summary, config = run.summary, run.config
    factor, unit = charts.scale(run.metric)
    score = run.clients["score"]
    figures = [
        (f"{run.metric}, mean ± std over clients", f"{factor * score.mean():.2f} ± {factor * score.std():.2f} {unit}")
    ]
    if summary["regret"] is not None:
        figures.append(("average regret", f"{summary['regret'] / config.rounds:.4f}"))
        bound = summary["bound"]
        figures.append(("its bound", "not covered" if bound is None else f"{bound / config.rounds:.4f}"))
        figures.append(("best model in hindsight", f"{factor * summary['best_in_hindsight']:.2f} {unit}"))
    if summary.get("frozen") is not None:
        figures.append(("the same choices, frozen", f"{factor * summary['frozen']:.2f} {unit}"))
    exchanges = -(-config.rounds // config.interval) * config.clients
    figures.append(("down, a client and exchange", human_bytes(summary["bytes_down"] / exchanges)))
    figures.append(("up, a client and exchange", human_bytes(summary["bytes_up"] / exchanges)))
    figures.append(("most held, of the budget", _most_held(run)))
    return figures


def figures_table(runs: Sequence[FinishedRun]) -> Table:
    """The runs' figures side by side."""
    factor, unit = charts.scale(runs[0].metric)
    rows = []
    for run in runs:
        summary, rounds = run.summary, run.config.rounds
        score = run.clients["score"]
        rows.append(
            [
                run.name,
                f"{factor * score.mean():.2f} ± {factor * score.std():.2f}",
                *(_scaled(summary.get(key), factor) for key in ("frozen", "random_model", "best_in_hindsight")),
                _scaled(summary["regret"], 1 / rounds, 4),
                "not covered" if summary["bound"] is None else f"{summary['bound'] / rounds:.4f}",
                human_bytes(summary["bytes_down"]),
                human_bytes(summary["bytes_up"]),
                f"{summary['seconds']:.1f}",
            ]
        )
    header = ["run", f"{runs[0].metric} ({unit})", "frozen", "random model", "best in hindsight", "average regret"]
    header += ["its bound", "down", "up", "seconds"]
    best = max if runs[0].metric == "accuracy" else min
    notes = ["Mean ± standard deviation over clients."]
    if _reasons(runs):
        notes.append(f"Why a bound is missing: {_reasons(runs)}.")
    if len(runs) > 1:
        winner = best(runs, key=lambda run: run.summary["mean"])
        notes.insert(0, f"Best by its mean: {winner.name}.")
    return Table("runs", "Figures", header, rows, notes=notes)


def _sections(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """What is drawn over rounds."""
    return [
        {
            "title": "Over rounds",
            "text": "Bands: one standard deviation over clients for the metric, 10 to 90 % of the clients for regret.",
            "charts": [
                ("Accuracy" if runs[0].metric == "accuracy" else "Squared error", charts.metric_chart(runs)),
                ("Regret", charts.regret_chart(runs)),
            ],
        },
        {
            "title": "Fine-tuning",
            "text": "Against the same choices with the dictionary as it was at the start; and who shares the uplink.",
            "charts": [
                ("Gain over the frozen dictionary", charts.gain_chart(runs)),
                ("Groups", charts.groups_chart(runs)),
            ],
        },
        {
            "title": "Memory and bandwidth",
            "text": "A model that a client has in its newest version is not sent again.",
            "charts": [("Memory", charts.memory_chart(runs)), ("Bytes", charts.bytes_chart(runs))],
        },
    ]


def _weights(run: FinishedRun) -> dict[str, Any]:
    followed = run.history["probability"].shape[1] if "probability" in run.history else 0
    return {
        "name": run.name,
        "shares": charts.shares_chart(run),
        "clients": [
            {"number": client, "chart": charts.weights_chart(run, client)}
            for client in range(min(followed, _MOST_CLIENTS))
        ],
    }


def _facts(run: FinishedRun) -> dict[str, Any]:
    factor, unit = charts.scale(run.metric)
    held, chosen = run.clients["held_share"].mean(axis=0), run.clients["prediction_share"].mean(axis=0)
    alone = run.clients["model_score"].mean(axis=0) if "model_score" in run.clients else np.full(held.size, np.nan)
    return {
        "name": run.name,
        "metric": run.metric,
        "models": [
            [name, f"{100 * often:.1f} %", f"{100 * predicted_share:.1f} %", f"{factor * score:.2f} {unit}"]
            for name, often, predicted_share, score in zip(_model_names(run), held, chosen, alone, strict=True)
        ],
        "toml": run.config.to_toml(),
        "revision": run.summary["revision"],
    }


def _model_names(run: FinishedRun) -> list[str]:
    """The models' names, with the numbers that the charts show them by."""
    return [f"{index}: {name}" for index, name in enumerate(run.summary["models"])]


def _named_apart(runs: list[FinishedRun]) -> list[FinishedRun]:
    """Runs whose names differ: the policies' where those do, else the folders', with a number where they do not."""
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


def _most_held(run: FinishedRun) -> str:
    share = run.clients["most_held"] / run.clients["budget"]
    return f"{100 * float(share.max()):.0f} %"


def _reasons(runs: Sequence[FinishedRun]) -> str:
    return "; ".join(sorted({str(run.summary["not_covered"]) for run in runs if run.summary.get("not_covered")}))


def _scaled(value: float | None, factor: float, digits: int = 2) -> str:
    return "–" if value is None else f"{factor * value:.{digits}f}"
