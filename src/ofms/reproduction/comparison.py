"""table:2: all policies on all datasets, and their traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.drawing.tables import Table
from ofms.policies.registry import setting_names, trust_in
from ofms.reproduction.bench import POLICIES, Bench, Section, row_of, title_of, title_of_row
from ofms.reproduction.cells import Cell
from ofms.reproduction.summaries import (
    average_regret,
    best_row,
    bytes_per_round,
    column_results,
    drift_cells,
    in_paper,
    mean_figure,
    result_data,
    seed_cells,
    seeds_note,
    show,
    summarise,
    synthetic_note,
    unit,
)
from ofms.runs.config import RUN_FIELDS
from ofms.runs.result import Result
from ofms.runs.warning_lines import summarise_warnings


def comparison(bench: Bench, names: Iterable[str] = tuple(POLICIES), *, details: bool = False, **given: Any) -> Section:
    """table:2: policies, or other rows of `bench.ROWS`, on all datasets, and the bytes that they send.

    With `details`, average regret stands beside the metric, and a further table has every seed by itself.
    """
    names = list(names)
    known = {name: _known(name) for name in names}
    for key, value in given.items():
        if not any(key in each for each in known.values()):
            raise InvalidInput(key, value, f"none of {', '.join(names)} has this setting; leave it out")
    runs = {
        (name, column): bench.runs(column, row_of(name).policy, **_own(name, given))
        for column in bench.columns
        for name in names
    }
    header, rows, bold = [""], [[title_of_row(name)] for name in names], set()
    for column in bench.columns:
        published = in_paper("comparison", column)
        figures = {name: summarise(runs[name, column]) for name in names}
        place = best_row([figures[name] for name in names], column_results(runs, column))
        if place is not None:
            bold.add((place, len(header)))
        header += [f"{title_of(column)}, {unit(column, bench.store.trust)}", *(["average regret"] if details else [])]
        header += ["paper"] if published else []
        for name, row in zip(names, rows, strict=True):
            row += [show(figures[name]), *([average_regret(runs[name, column])] if details else [])]
            row += [show(published.get(name))] if published else []
    # Of one run, because fine-tuning changes the models.
    reference = "ofms-ft" if "ofms-ft" in names else names[0]
    for label, key in (
        ("a uniformly random model", "random_model"),
        ("the best model in hindsight", "best_in_hindsight"),
    ):
        row = [f"{label} (of {title_of_row(reference)}'s run)"]
        for column in bench.columns:
            found = runs.get((reference, column), [])
            row.append(f"{mean_figure(found, key):.2f}" if found else "–")
            row += [""] * (details + bool(in_paper("comparison", column)))
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
        data=_data(runs),
    )
    return Section(
        "comparison",
        "Comparison",
        "All policies with the settings of preset `published`, beside the paper's figures (table 2).",
        [
            table,
            *(seed_tables(bench, runs, names) if details else []),
            *drift_table(bench, runs, names),
            traffic(bench, runs, names),
        ],
        warnings=_warnings(runs),
    )


def first_runs(bench: Bench, names: Iterable[str], **given: Any) -> dict[str, Path]:
    """The run folders of a comparison's first seed, by the titles of their rows, for a report."""
    cells = {
        title_of_row(name): Cell(column, row_of(name).policy, bench.size.first_seed, _own(name, given))
        for name in names
        for column in bench.columns
    }
    folders = {title: bench.store.run_folder(cell) for title, cell in cells.items()}
    return {title: folder for title, folder in folders.items() if folder.exists()}


def _warnings(runs: Mapping[tuple[str, str], list[Result]]) -> list[str]:
    """What all runs of a comparison warn about, by row; by dataset too if there are several."""
    several = len({column for _, column in runs}) > 1
    return summarise_warnings(
        (title_of_row(name) + (f" on {title_of(column)}" if several else ""), result.figures.get("warnings", ()))
        for (name, column), results in runs.items()
        for result in results
    )


def _data(runs: Mapping[tuple[str, str], list[Result]]) -> list[dict[str, Any]]:
    """The results for JSON; a row that is not just a policy has its name."""
    return [
        ({"row": name} if row_of(name).given else {}) | result_data(result)
        for (name, _), results in runs.items()
        for result in results
    ]


def _known(name: str) -> Set[str]:
    """The fields of a run and the settings of a row's policy."""
    policy = row_of(name).policy
    return setting_names(policy, trust_in(policy)) | RUN_FIELDS


def _own(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's values that a row's policy has, and the row's own settings."""
    return {key: value for key, value in given.items() if key in _known(name)} | dict(row_of(name).given)


def seed_tables(bench: Bench, runs: Mapping[tuple[str, str], list[Result]], names: Sequence[str]) -> list[Table]:
    """The mean over clients of every seed beside the mean over seeds and its spread, one table per dataset."""
    tables = []
    for column in bench.columns:
        seeds = bench.size.seed_range(column)
        if len(seeds) < 2:
            continue
        rows = [[title_of_row(name), *seed_cells(runs[name, column], seeds)] for name in names]
        tables.append(
            Table(
                "seeds" if len(bench.columns) == 1 else f"seeds-{Path(column).stem}",
                f"Seed by seed: {title_of(column)}, {unit(column, bench.store.trust)}",
                ["", "mean over seeds", *(f"seed {seed}" for seed in seeds)],
                rows,
                notes=["Means over clients; beside them their mean and standard deviation over seeds."],
            )
        )
    return tables


def drift_table(bench: Bench, runs: Mapping[tuple[str, str], list[Result]], names: Sequence[str]) -> list[Table]:
    """Dynamic regret and rounds until recovered, if the streams drift."""
    if not any(result.drifts for results in runs.values() for result in results):
        return []
    header, rows = [""], [[title_of_row(name)] for name in names]
    for column in bench.columns:
        header += [f"{title_of(column)}, dynamic regret", "rounds until recovered"]
        for name, row in zip(names, rows, strict=True):
            row += drift_cells(runs[name, column])
    data = _data(runs)
    return [Table("drift", "Dynamic regret per round, and rounds until recovered", header, rows, data=data)]


def traffic(bench: Bench, runs: Mapping[tuple[str, str], list[Result]], names: Sequence[str]) -> Table:
    """Mean bytes that a client downloads and uploads per round."""
    header, rows = [""], [[title_of_row(name)] for name in names]
    for column in bench.columns:
        title = title_of(column)
        header += [f"{title}, down", "up"]
        for name, row in zip(names, rows, strict=True):
            row += [bytes_per_round(runs[name, column], "down"), bytes_per_round(runs[name, column], "up")]
    data = _data(runs)
    return Table("traffic", "Mean bytes per client and round", header, rows, data=data)
