"""Streams that drift: policies by their metric, dynamic regret and rounds until recovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ofms.drawing.charts import Curve
from ofms.drawing.tables import Table
from ofms.reproduction.bench import IMAGE_SETS, Bench, Figure, Section, title_of
from ofms.reproduction.method_rows import ABLATION, FROZEN_OFMS_FT, METHOD, SIMPLE_ROWS, TUNED, Row
from ofms.reproduction.summaries import (
    best_row,
    drift_cells,
    factor_of,
    mean_figure,
    result_data,
    seeds_note,
    show,
    summarise,
    synthetic_note,
    unit,
)
from ofms.runs.formatting import phase_levels, recent_scores
from ofms.runs.result import Result

_SEEDS = 3
_KINDS = ("switch", "gradual", "recurring")
_FURTHER_KINDS = {"digits": ("rotate",)}
_REFERENCE = "OFMS-FT, frozen"


# The policies, but for one with frozen dictionaries.
_ROWS = {
    "MAB": Row("mab"),
    "budgeted expert advice": Row("budgeted-experts"),
    _REFERENCE: FROZEN_OFMS_FT,
    "late hedging, frozen": METHOD,
    "late hedging, fine-tuned": TUNED,
    "late hedging, one memory": replace(METHOD, given={**METHOD.given, **ABLATION["one memory"]}),
    **SIMPLE_ROWS,
}

Runs = dict[tuple[str, str], list[Result]]


def drift(bench: Bench) -> Section:
    """Policies on streams that drift, one table and one chart per dataset."""
    columns = list(bench.columns) if bench.chosen else [*bench.columns, "digits"]
    bench = replace(bench, cached=True)
    tables, figures = [], []
    for column in columns:
        kinds = (*_KINDS, *_FURTHER_KINDS.get(column, ()))
        runs = {
            (label, kind): _with_seeds(bench, column, row).runs(column, row.policy, drift=kind, **row.given)
            for kind in kinds
            for label, row in _ROWS.items()
        }
        tables.append(_table(bench, column, kinds, runs))
        figures += _figure(bench, column, kinds, runs)
    text = (
        "Frozen dictionaries but for one row, B = 5. `switch`: each client's majority class (A, B, C) or site (A, B, "
        "A) changes after a third and two thirds of the rounds; `gradual`: the same changes, each over a sixth of the "
        "rounds; `recurring`: A, B, A, B; `rotate`: images turn by up to 45°. Dynamic regret, per round and in the "
        "selection loss, is against the best model of each phase (each third with `rotate`). A client has recovered "
        "from a change when its mean over the next ten rounds is within 5 points of accuracy, or a quarter of the "
        "squared error, of the phase's best model over the phase; if it never is, all rounds of the phase count."
    )
    return Section("drift", "Drift", text, tables, figures)


def _with_seeds(bench: Bench, column: str, row: Row) -> Bench:
    """Three seeds by default, one if image models are fine-tuned."""
    if bench.size.seeds is not None:
        return bench
    count = 1 if bench.size.quick or (row.tuned and column in IMAGE_SETS) else _SEEDS
    return replace(bench, size=replace(bench.size, seeds=count))


def _table(bench: Bench, column: str, kinds: Sequence[str], runs: Runs) -> Table:
    header, bold = [""], set()
    rows = [[label] for label in _ROWS]
    hindsight = [["the best model in hindsight"], ["the best model of each phase"]]
    for kind in kinds:
        scores = [summarise(runs[label, kind]) for label in _ROWS]
        place = best_row(scores, [result for label in _ROWS for result in runs[label, kind]])
        if place is not None:
            bold.add((place, len(header)))
        header += [f"{kind}, {unit(column, bench.store.trust)}", "dynamic regret", "rounds until recovered"]
        for label, score, row in zip(_ROWS, scores, rows, strict=True):
            row += [show(score), *drift_cells(runs[label, kind])]
        reference = runs[_REFERENCE, kind]
        for name, row in zip(("best_in_hindsight", "best_of_phases"), hindsight, strict=True):
            row += [f"{mean_figure(reference, name):.2f}" if reference else "–", "", ""]
    return Table(
        f"drift-{Path(column).stem}",
        f"{title_of(column)} with drift, mean ± standard deviation over clients",
        header,
        [*rows, *hindsight],
        frozenset(bold),
        notes=[seeds_note((column, results) for results in runs.values()), *synthetic_note([column])],
        data=[result_data(result) for results in runs.values() for result in results],
    )


def _figure(bench: Bench, column: str, kinds: Sequence[str], runs: Runs) -> list[Figure]:
    """The metric over the last ten rounds, one panel per kind of drift; none without cells."""
    panels = []
    for kind in kinds:
        reference = runs[_REFERENCE, kind]
        if reference:
            levels = factor_of(reference) * np.mean([phase_levels(result) for result in reference], axis=0)
            marks = [change + 1 for change in reference[0].figures["changes"]]
            curves = [Curve("the best model of each phase", levels, marks=marks, dashed=True)]
            curves += [_curve(label, runs[label, kind]) for label in _ROWS if runs[label, kind]]
            panels.append((kind, curves))
    title = f"{title_of(column)}: the last ten rounds, mean over clients; vertical lines mark changes"
    ylabel = f"the last ten rounds, {unit(column, bench.store.trust)}"
    return [Figure(f"drift-{Path(column).stem}", title, panels, ylabel)] if panels else []


def _curve(label: str, results: Sequence[Result]) -> Curve:
    return Curve(label, factor_of(results) * np.mean([recent_scores(result) for result in results], axis=0))
