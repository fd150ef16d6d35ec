"""From records to what stands in a table or a picture, beside the paper's figures."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ofms.drawing.charts import Curve
from ofms.reproduction.bench import title_of
from ofms.reproduction.cells import Record
from ofms.runs.config import load_experiment
from ofms.runs.dictionaries import task_of
from ofms.runs.units import human_bytes


@cache
def _paper() -> dict[str, Any]:
    return tomllib.loads(resources.files("ofms.reproduction").joinpath("paper.toml").read_text(encoding="utf-8"))


def paper(table: str) -> dict[str, Any]:
    """The figures of one of the paper's tables, by dataset and row."""
    figures: dict[str, Any] = _paper()[table]
    return figures


def in_paper(table: str, experiment: str) -> dict[str, Any]:
    """What one of the paper's tables has on the dataset that an experiment stands for; nothing where it has none."""
    figures: dict[str, Any] = paper(table).get(experiment.removesuffix("-synthetic"), {})
    return figures


def summarise(records: Sequence[Record]) -> tuple[float, float] | None:
    """Mean and standard deviation over clients, each averaged over seeds, in the table's units."""
    if not records:
        return None
    factor = scale(records)
    return factor * float(np.mean([run.mean for run in records])), factor * float(np.mean([run.std for run in records]))


def scale(records: Sequence[Record]) -> float:
    return 100.0 if records[0].metric == "accuracy" else 1000.0


def unit(experiment: str) -> str:
    """What an experiment's figures are in."""
    return "%" if task_of(load_experiment(experiment)) == "classification" else "MSE ×10⁻³"


def show(figures: Sequence[float] | None) -> str:
    return "–" if figures is None else f"{figures[0]:.2f} ± {figures[1]:.2f}"


def best_row(figures: Sequence[tuple[float, float] | None], records: Sequence[Record]) -> int | None:
    known = [(value[0], place) for place, value in enumerate(figures) if value is not None]
    if not known:
        return None
    return (max if records[0].metric == "accuracy" else min)(known)[1]


def runs_of(runs: Mapping[tuple[str, str], list[Record]], column: str) -> list[Record]:
    return [record for (_, each), records in runs.items() if each == column for record in records]


def bytes_a_round(records: Sequence[Record], direction: str) -> str:
    """What a client moves in a round."""
    if not records:
        return "–"
    totals = [
        getattr(record, f"bytes_{direction}") / (record.config.clients * record.config.rounds) for record in records
    ]
    return human_bytes(float(np.mean(totals)))


def regret_curve(label: str, records: Sequence[Record]) -> Curve:
    """Average regret over rounds, its spread over clients, and its bound at the end."""
    rounds = np.arange(1, len(records[0].regret_over_rounds) + 1)
    low, high = np.mean([record.regret_quantiles for record in records], axis=0) / rounds
    bounds = [record.bound for record in records if record.bound is not None]
    return Curve(
        label,
        np.mean([record.regret_over_rounds for record in records], axis=0) / rounds,
        low,
        high,
        float(np.mean(bounds)) / len(rounds) if bounds else None,
    )


def record_data(record: Record) -> dict[str, Any]:
    """A record for JSON: what was run, and its figures."""
    return {
        "experiment": record.config.experiment,
        "policy": record.config.policy,
        "seed": record.config.seed,
        "budget": record.config.budget,
        "metric": record.metric,
        "mean": record.mean,
        "std": record.std,
        "regret": float(np.mean(record.regret)),
        "bytes_down": record.bytes_down,
        "bytes_up": record.bytes_up,
        "client_seconds": record.client_seconds,
        "seconds": record.seconds,
        "command": record.command,
    }


def seeds_note(found: Iterable[tuple[str, Sequence[Record]]]) -> str:
    """How many seeds the figures of each column are of: what was found, which may be less than was asked for."""
    counts: dict[str, set[int]] = {}
    for column, records in found:
        counts.setdefault(title_of(column), set()).update([len(records)] if records else [])
    shown = [
        f"{title} {'–' if not some else min(some) if len(some) == 1 else f'{min(some)} to {max(some)}'}"
        for title, some in counts.items()
    ]
    return f"Seeds: {', '.join(shown)}."


def synthetic_note(columns: Iterable[str]) -> list[str]:
    if "wec-synthetic" not in columns:
        return []
    return ["WEC (synthetic): made by a generator, nothing measured; the paper's WEC figures are of the real data."]
