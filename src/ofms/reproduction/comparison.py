"""table:2: all policies on all datasets, and their traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.drawing.tables import Table
from ofms.policies.registry import setting_names, trust_in
from ofms.reproduction.bench import POLICIES, Bench, Section, title_of
from ofms.reproduction.cells import Cell
from ofms.reproduction.summaries import (
    best_row,
    bytes_per_round,
    column_results,
    drift_cells,
    in_paper,
    mean_figure,
    result_data,
    seeds_note,
    show,
    summarise,
    synthetic_note,
    unit,
)
from ofms.runs.config import RUN_FIELDS
from ofms.runs.result import Result


def comparison(bench: Bench, policies: Iterable[str] = tuple(POLICIES), **given: Any) -> Section:
    """table:2: all policies on all datasets, and the bytes that they send."""
    names = list(policies)
    known = {name: setting_names(name, trust_in(name)) | RUN_FIELDS for name in names}
    for key, value in given.items():
        if not any(key in each for each in known.values()):
            raise InvalidInput(key, value, f"none of {', '.join(names)} has this setting; leave it out")
    runs = {
        (name, column): bench.runs(column, name, **{key: value for key, value in given.items() if key in known[name]})
        for column in bench.columns
        for name in names
    }
    header, rows, bold = [""], [[POLICIES.get(name, name)] for name in names], set()
    for column in bench.columns:
        published = in_paper("comparison", column)
        figures = {name: summarise(runs[name, column]) for name in names}
        place = best_row([figures[name] for name in names], column_results(runs, column))
        if place is not None:
            bold.add((place, len(header)))
        header += [f"{title_of(column)}, {unit(column, bench.store.trust)}", *(["paper"] if published else [])]
        for name, row in zip(names, rows, strict=True):
            row += [show(figures[name]), *([show(published.get(name))] if published else [])]
    for label, key in (
        ("a uniformly random model", "random_model"),
        ("the best model in hindsight", "best_in_hindsight"),
    ):
        row = [f"{label} (of OFMS-FT's run)"]
        for column in bench.columns:
            found = runs.get(("ofms-ft", column), [])
            row.append(f"{mean_figure(found, key):.2f}" if found else "–")
            row += [""] if in_paper("comparison", column) else []
        rows.append(row)
    table = Table(
        "comparison",
        "Mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        frozenset(bold),
        notes=[
            seeds_note((column, results) for (_, column), results in runs.items()),
            *synthetic_note(bench.columns),
        ],
        data=[result_data(result) for results in runs.values() for result in results],
    )
    return Section(
        "comparison",
        "Comparison",
        "All policies with the settings of preset `published`, beside the paper's figures (table 2).",
        [table, *drift_table(bench, runs, names), traffic(bench, runs, names)],
    )


def first_runs(bench: Bench, policies: Iterable[str], **given: Any) -> list[Path]:
    """The run folders of a comparison's first seed, for a report."""
    folders = []
    for name in policies:
        known = setting_names(name, trust_in(name)) | RUN_FIELDS
        some = {key: value for key, value in given.items() if key in known}
        folders += [bench.store.run_folder(Cell(column, name, bench.size.first_seed, some)) for column in bench.columns]
    return [folder for folder in folders if folder.exists()]


def drift_table(bench: Bench, runs: Mapping[tuple[str, str], list[Result]], names: Sequence[str]) -> list[Table]:
    """Dynamic regret and rounds until recovered, if the streams drift."""
    if not any(result.drifts for results in runs.values() for result in results):
        return []
    header, rows = [""], [[POLICIES.get(name, name)] for name in names]
    for column in bench.columns:
        header += [f"{title_of(column)}, dynamic regret", "rounds until recovered"]
        for name, row in zip(names, rows, strict=True):
            row += drift_cells(runs[name, column])
    data = [result_data(result) for results in runs.values() for result in results]
    return [Table("drift", "Dynamic regret per round, and rounds until recovered", header, rows, data=data)]


def traffic(bench: Bench, runs: Mapping[tuple[str, str], list[Result]], names: Sequence[str]) -> Table:
    """Mean bytes that a client downloads and uploads per round."""
    header, rows = [""], [[POLICIES.get(name, name)] for name in names]
    for column in bench.columns:
        title = title_of(column)
        header += [f"{title}, down", "up"]
        for name, row in zip(names, rows, strict=True):
            row += [bytes_per_round(runs[name, column], "down"), bytes_per_round(runs[name, column], "up")]
    data = [result_data(result) for results in runs.values() for result in results]
    return Table("traffic", "Mean bytes per client and round", header, rows, data=data)
