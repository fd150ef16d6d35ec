"""Late hedging beside OFMS-FT and simple policies, by budget, and with each of its ingredients left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ofms.drawing.dots import Dot, DotPanel
from ofms.drawing.tables import Table
from ofms.reproduction.bench import BUDGETS, IMAGE_SETS, Bench, DotFigure, Section, title_of
from ofms.reproduction.cells import Cell
from ofms.reproduction.method_rows import (
    ABLATION,
    COLUMNS,
    FROZEN_OFMS_FT,
    FURTHER_ROWS,
    LIMITS,
    METHOD,
    ROWS,
    SIMPLE_ROWS,
    TUNED,
    TUNED_ABLATION,
    Row,
)
from ofms.reproduction.summaries import (
    best_row,
    column_results,
    factor_of,
    mean_figure,
    result_data,
    seeds_note,
    show,
    summarise,
    unit,
)
from ofms.runs.result import Result

_BUDGET = "5"
_WHOLE = "nothing left out"

Runs = dict[tuple[str, str], list[Result]]


def method(bench: Bench) -> Section:
    """The method's tables and charts."""
    bench = bench if bench.chosen else replace(bench, columns=COLUMNS)
    runs = _runs(bench, {**ROWS, **FURTHER_ROWS, **LIMITS}, _BUDGET)
    ablations = {budget: _runs(bench, _without(METHOD, ABLATION), budget) for budget in BUDGETS}
    tuned = _runs(bench, _without(TUNED, TUNED_ABLATION), _BUDGET)
    tables = [_main_table(bench, runs), _budget_table(bench)]
    title = "Late hedging, frozen, with one ingredient left out"
    tables += [
        _ablation_table(bench, f"method-ablation-{budget}", f"{title}: B = {budget}", found)
        for budget, found in ablations.items()
    ]
    title = f"Late hedging, fine-tuned, with one ingredient left out or changed: B = {_BUDGET}"
    tables.append(_ablation_table(bench, "method-ablation-tuned", title, tuned))
    title = f"The policies at B = {_BUDGET} with their spread over clients; dotted: the best single model in hindsight"
    figures = [
        DotFigure("method", title, _main_panels(bench, runs)),
        DotFigure(
            "method-ablation",
            f"What leaving out an ingredient changes at B = {_BUDGET}, with its standard error; better is to the right",
            _ablation_panels(bench, ablations[_BUDGET]),
        ),
        DotFigure(
            "method-ablation-tuned",
            f"What leaving out an ingredient of fine-tuning changes at B = {_BUDGET}; better is to the right",
            _ablation_panels(bench, tuned),
        ),
    ]
    text = (
        "Late hedging (`late-hedge`) beside OFMS-FT, Fed-POE, and two simple policies that do not fine-tune. "
        "Frozen: without fine-tuning."
    )
    return Section("method", "Late hedging", text, tables, [figure for figure in figures if figure.panels])


def _runs(bench: Bench, rows: Mapping[str, Row], budget: str) -> Runs:
    return {
        (label, column): _results(bench, column, row, budget) for column in bench.columns for label, row in rows.items()
    }


def _results(bench: Bench, column: str, row: Row, budget: str) -> list[Result]:
    """The results of a row, one per seed."""
    if not bench.has_cells(column):
        return []
    if row.holds_all:
        budget = str(len(bench.store.dictionary(column)[0]))
    given = bench.size.given(column) | {"budget": budget} | dict(row.given)
    cells = [Cell(column, row.policy, seed, given, cached=True) for seed in _seeds(bench, column, tuned=row.tuned)]
    return bench.store.results(cells)


def _seeds(bench: Bench, column: str, *, tuned: bool) -> range:
    """Five seeds by default; three on images, one if image models are fine-tuned."""
    if bench.size.seeds is not None or bench.size.quick:
        return bench.size.seed_range(column)
    count = 5 if column not in IMAGE_SETS else 1 if tuned else 3
    return range(bench.size.first_seed, bench.size.first_seed + count)


def _main_table(bench: Bench, runs: Runs) -> Table:
    possible, limits = [*ROWS, *FURTHER_ROWS], [*LIMITS]
    rows = {label: [label] for label in (*possible, "the best single model in hindsight", *limits)}
    header, bold = [""], set()
    for column in bench.columns:
        place = best_row([summarise(runs[label, column]) for label in possible], column_results(runs, column))
        if place is not None:
            bold.add((place, len(header)))
        header += [f"{title_of(column)}, {unit(column, bench.store.trust)}", "down"]
        for label in (*possible, *limits):
            rows[label] += [show(summarise(runs[label, column])), _models_down(bench, column, runs[label, column])]
        frozen = runs[_label_of(FROZEN_OFMS_FT), column]
        best = f"{mean_figure(frozen, 'best_in_hindsight'):.2f}" if frozen else "–"
        rows["the best single model in hindsight"] += [best, ""]
    return Table(
        "method",
        f"Policies at B = {_BUDGET}, mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        list(rows.values()),
        frozenset(bold),
        notes=[
            "Down: downloads per client and round, in models of mean size. "
            "The best single model is of the frozen dictionary, for each client its own.",
            seeds_note((column, results) for (_, column), results in runs.items()),
        ],
        data=_data(runs),
    )


def _budget_table(bench: Bench) -> Table:
    compared = {**ROWS, **SIMPLE_ROWS}
    found = {budget: _runs(bench, compared, budget) for budget in BUDGETS}
    header = ["", *(f"{title_of(column)}, {unit(column, bench.store.trust)}" for column in bench.columns)]
    rows = [
        [f"{label}, B = {budget}", *(show(summarise(found[budget][label, column])) for column in bench.columns)]
        for label in compared
        for budget in BUDGETS
    ]
    return Table(
        "method-budgets",
        "By budget, mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        notes=[seeds_note((column, results) for runs in found.values() for (_, column), results in runs.items())],
        data=[entry for runs in found.values() for entry in _data(runs)],
    )


def _without(whole: Row, ablation: Mapping[str, Mapping[str, Any]]) -> dict[str, Row]:
    """A row, and those with one of its ingredients left out; those without fine-tuning are frozen rows."""
    rows = {label: replace(whole, given={**whole.given, **off}) for label, off in ablation.items()}
    frozen = {label: replace(row, tuned=row.given.get("fine_tuning_rate") != 0) for label, row in rows.items()}
    return {_WHOLE: whole, **frozen}


def _ablation_table(bench: Bench, name: str, title: str, runs: Runs) -> Table:
    rows = [[label] for label in _labels(runs)]
    header = [""]
    for column in bench.columns:
        header += [f"{title_of(column)}, {unit(column, bench.store.trust)}", "change", "down"]
        for row in rows:
            results = runs[row[0], column]
            change = "" if row[0] == _WHOLE else show(_change(runs[_WHOLE, column], results))
            row += [show(summarise(results)), change, _models_down(bench, column, results)]
    return Table(
        name,
        f"{title}, mean ± standard deviation over clients",
        header,
        rows,
        notes=[
            "Change: against the whole method for the same clients, ± its standard error. "
            "Down: downloads per client and round, in models of mean size.",
            seeds_note((column, results) for (_, column), results in runs.items()),
        ],
        data=_data(runs),
    )


def _main_panels(bench: Bench, runs: Runs) -> list[DotPanel]:
    panels = []
    for column in bench.columns:
        dots = []
        for label in (*ROWS, *FURTHER_ROWS, *LIMITS):
            figure = summarise(runs[label, column])
            dots.append(Dot(label, None) if figure is None else Dot(label, *figure))
        frozen = runs[_label_of(FROZEN_OFMS_FT), column]
        best = mean_figure(frozen, "best_in_hindsight") if frozen else None
        panels.append(DotPanel(title_of(column), unit(column, bench.store.trust), dots, best))
    return _with_dots(panels)


def _ablation_panels(bench: Bench, runs: Runs) -> list[DotPanel]:
    panels = []
    for column in bench.columns:
        dots = []
        for label in _labels(runs)[1:]:
            change = _change(runs[_WHOLE, column], runs[label, column])
            results = runs[label, column]
            sign = -1 if results and results[0].metric == "mse" else 1
            dots.append(Dot(label, None) if change is None else Dot(label, sign * change[0], change[1]))
        panels.append(DotPanel(title_of(column), f"gain, {unit(column, bench.store.trust)}", dots, 0.0))
    return _with_dots(panels)


def _change(whole: Sequence[Result], part: Sequence[Result]) -> tuple[float, float] | None:
    """The mean change of a client's metric and its standard error, over the seeds that both were run with."""
    known = {result.config.seed: result.score for result in whole}
    pairs = [result.score - known[result.config.seed] for result in part if result.config.seed in known]
    if not pairs:
        return None
    changes = factor_of(part) * np.concatenate(pairs)
    return float(changes.mean()), float(changes.std() / np.sqrt(changes.size))


def _models_down(bench: Bench, column: str, results: Sequence[Result]) -> str:
    """Downloads per client and round, in models of mean size."""
    if not results:
        return "–"
    size = float(bench.store.dictionary(column)[0].catalogue().storage.mean())
    downloads = [
        result.figures["bytes_down"] / (result.config.clients * result.config.rounds * size) for result in results
    ]
    return f"{np.mean(downloads):.2f}"


def _labels(runs: Runs) -> list[str]:
    return list(dict.fromkeys(label for label, _ in runs))


def _label_of(row: Row) -> str:
    return next(label for label, each in ROWS.items() if each is row)


def _data(runs: Runs) -> list[dict[str, object]]:
    return [{"row": label, **result_data(result)} for (label, _), results in runs.items() for result in results]


def _with_dots(panels: list[DotPanel]) -> list[DotPanel]:
    """Without the datasets of which nothing was run."""
    return [panel for panel in panels if any(dot.value is not None for dot in panel.dots)]
