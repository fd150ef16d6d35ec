"""Summaries of results over seeds, for tables and charts next to the paper's figures."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ofms.drawing.charts import Curve
from ofms.plugins import Trust
from ofms.reproduction.bench import title_of
from ofms.runs.config import load_experiment
from ofms.runs.dictionaries import task_of
from ofms.runs.formatting import scale
from ofms.runs.result import Result
from ofms.runs.units import human_bytes


@cache
def _paper() -> dict[str, Any]:
    return tomllib.loads(resources.files("ofms.reproduction").joinpath("paper.toml").read_text(encoding="utf-8"))


def paper(table: str) -> dict[str, Any]:
    """Figures of one of the paper's tables, by dataset and row."""
    figures: dict[str, Any] = _paper()[table]
    return figures


def in_paper(table: str, experiment: str) -> dict[str, Any]:
    """Figures of one of the paper's tables for an experiment's dataset; empty if it has none."""
    figures: dict[str, Any] = paper(table).get(experiment.removesuffix("-synthetic"), {})
    return figures


def summarise(results: Sequence[Result]) -> tuple[float, float] | None:
    """Mean and standard deviation over clients, each averaged over seeds, in the table's units."""
    if not results:
        return None
    factor = factor_of(results)
    means, stds = [result.mean for result in results], [result.std for result in results]
    return factor * float(np.mean(means)), factor * float(np.mean(stds))


def mean_figure(results: Sequence[Result], name: str) -> float:
    """One of the metric's figures, averaged over seeds, in the table's units."""
    return factor_of(results) * float(np.mean([result.figures[name] for result in results]))


def factor_of(results: Sequence[Result]) -> float:
    """The factor from the metric to the table's units."""
    return scale(results[0].metric)[0]


def unit(experiment: str, trust: Trust) -> str:
    """The unit of an experiment's figures."""
    return "%" if task_of(load_experiment(experiment), trust) == "classification" else "MSE ×10⁻³"


def show(figures: Sequence[float] | None) -> str:
    return "–" if figures is None else f"{figures[0]:.2f} ± {figures[1]:.2f}"


def best_row(figures: Sequence[tuple[float, float] | None], results: Sequence[Result]) -> int | None:
    """The row with the best mean."""
    known = [(value[0], place) for place, value in enumerate(figures) if value is not None]
    if not known:
        return None
    return (max if results[0].metric == "accuracy" else min)(known)[1]


def column_results(runs: Mapping[tuple[str, str], list[Result]], column: str) -> list[Result]:
    """All results of one column, by (row, column)."""
    return [result for (_, each), results in runs.items() if each == column for result in results]


def bytes_per_round(results: Sequence[Result], direction: str) -> str:
    """Bytes per client and round."""
    if not results:
        return "–"
    totals = [
        result.figures[f"bytes_{direction}"] / (result.config.clients * result.config.rounds) for result in results
    ]
    return human_bytes(float(np.mean(totals)))


def average_regret(results: Sequence[Result]) -> str:
    """Regret per round, mean over clients and seeds."""
    known = [result.figures["regret"] for result in results if result.figures["regret"] is not None]
    return f"{np.mean(known) / results[0].config.rounds:.4f}" if known else "–"


def seed_cells(results: Sequence[Result], seeds: Iterable[int]) -> list[str]:
    """The mean over seeds ± its standard deviation, then each seed's mean over clients; a dash for a missing one."""
    means = {result.config.seed: factor_of(results) * result.mean for result in results}
    values = list(means.values())
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    first = f"{np.mean(values):.2f}{spread}" if values else "–"
    return [first, *(f"{means[seed]:.2f}" if seed in means else "–" for seed in seeds)]


def drift_cells(results: Sequence[Result]) -> list[str]:
    """Dynamic regret per round and rounds until recovered, mean over seeds."""
    if not results:
        return ["–", "–"]
    regret = np.mean([result.figures["dynamic_regret"] / result.config.rounds for result in results])
    recovery = [result.figures["recovery"] for result in results if result.figures["recovery"] is not None]
    return [f"{regret:#.3g}", f"{np.mean(recovery):.1f}" if recovery else "–"]


def mean_regret_curve(label: str, results: Sequence[Result]) -> Curve:
    """Average regret over rounds with its spread over clients and its final bound, averaged over seeds."""
    low, values, high = (
        np.mean([result.rounds[name] for result in results], axis=0) for name in ("regret_10", "regret", "regret_90")
    )
    rounds = np.arange(1, len(values) + 1)
    bounds = known_bounds(results)
    bound = float(np.mean(bounds)) / len(rounds) if bounds else None
    return Curve(label, values / rounds, low / rounds, high / rounds, bound)


def known_bounds(results: Sequence[Result]) -> list[float]:
    """The bounds of the results that the theorems cover."""
    return [result.figures["bound"] for result in results if result.figures["bound"] is not None]


def result_data(result: Result) -> dict[str, Any]:
    """A result for JSON: what was run, and its figures."""
    names: tuple[str, ...] = ("experiment", "policy", "seed", "budget", "metric", "mean", "std", "regret")
    if result.drifts:
        names += ("drift", "changes", "dynamic_regret", "recovery", "best_in_hindsight", "best_of_phases")
    return {
        name: result.figures[name]
        for name in (*names, "bytes_down", "bytes_up", "client_seconds", "seconds", "command")
    }


def seeds_note(found: Iterable[tuple[str, Sequence[Result]]]) -> str:
    """The number of seeds found for each column, which may be fewer than requested."""
    counts: dict[str, set[int]] = {}
    for column, results in found:
        counts.setdefault(title_of(column), set()).update([len(results)] if results else [])
    shown = [
        f"{title} {'–' if not some else min(some) if len(some) == 1 else f'{min(some)} to {max(some)}'}"
        for title, some in counts.items()
    ]
    return f"Seeds: {', '.join(shown)}."


def synthetic_note(columns: Iterable[str]) -> list[str]:
    if "wec-synthetic" not in columns:
        return []
    return ["WEC (synthetic): generated data, nothing measured; the paper's WEC figures are of the real data."]
