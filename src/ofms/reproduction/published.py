"""The paper's tables and its figure: which cells each of them shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.drawing.tables import Table
from ofms.policies.registry import setting_names, trust_in
from ofms.reproduction.bench import BUDGETS, MIXED, POLICIES, Bench, Figure, Section, title_of
from ofms.reproduction.cells import Cell, Record
from ofms.reproduction.summaries import (
    best_row,
    bytes_a_round,
    in_paper,
    record_data,
    regret_curve,
    runs_of,
    scale,
    seeds_note,
    show,
    summarise,
    synthetic_note,
    unit,
)
from ofms.runs.config import RUN_FIELDS

_CLIENTS_TIMED = 2


def comparison(bench: Bench, policies: Iterable[str] = tuple(POLICIES), **given: Any) -> Section:
    """table:2: all policies on all datasets; and what they send."""
    names = list(policies)
    known = {name: setting_names(name, trust_in(name)) | RUN_FIELDS for name in names}
    for key, value in given.items():
        if not any(key in each for each in known.values()):
            raise InvalidInput(key, value, f"none of {', '.join(names)} has such a setting")
    runs = {
        (name, column): bench.runs(column, name, **{key: value for key, value in given.items() if key in known[name]})
        for column in bench.columns
        for name in names
    }
    header, rows, bold = [""], [[POLICIES.get(name, name)] for name in names], set()
    for column in bench.columns:
        published = in_paper("comparison", column)
        figures = {name: summarise(runs[name, column]) for name in names}
        place = best_row([figures[name] for name in names], runs_of(runs, column))
        if place is not None:
            bold.add((place, len(header)))
        header += [f"{title_of(column)}, {unit(column)}", *(["paper"] if published else [])]
        for name, row in zip(names, rows, strict=True):
            row += [show(figures[name]), *([show(published.get(name))] if published else [])]
    for label, key in (
        ("a uniformly random model", "random_model"),
        ("the best model in hindsight", "best_in_hindsight"),
    ):
        row = [f"{label} (of OFMS-FT's run)"]
        for column in bench.columns:
            found = runs.get(("ofms-ft", column), [])
            row.append(f"{scale(found) * np.mean([getattr(run, key) for run in found]):.2f}" if found else "–")
            row += [""] if in_paper("comparison", column) else []
        rows.append(row)
    table = Table(
        "comparison",
        "Mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        frozenset(bold),
        notes=[
            seeds_note((column, records) for (_, column), records in runs.items()),
            *synthetic_note(bench.columns),
        ],
        data=[record_data(record) for records in runs.values() for record in records],
    )
    return Section(
        "comparison",
        "The comparison",
        "All policies with the settings of each experiment's file, beside the paper's figures (its table 2).",
        [table, traffic(bench, runs, names)],
    )


def first_runs(bench: Bench, policies: Iterable[str], **given: Any) -> list[Path]:
    """The folders of the first seed's runs of a comparison, for a report."""
    folders = []
    for name in policies:
        known = setting_names(name, trust_in(name)) | RUN_FIELDS
        some = {key: value for key, value in given.items() if key in known}
        folders += [bench.store.run_folder(Cell(column, name, bench.size.first_seed, some)) for column in bench.columns]
    return [folder for folder in folders if folder.exists()]


def traffic(bench: Bench, runs: Mapping[tuple[str, str], list[Record]], names: Sequence[str]) -> Table:
    """What a client downloads and uploads in a round, on average."""
    header, rows = [""], [[POLICIES.get(name, name)] for name in names]
    for column in bench.columns:
        title = title_of(column)
        header += [f"{title}, down", "up"]
        for name, row in zip(names, rows, strict=True):
            row += [bytes_a_round(runs[name, column], "down"), bytes_a_round(runs[name, column], "up")]
    data = [record_data(record) for records in runs.values() for record in records]
    return Table("traffic", "Bytes of a client and round, on average", header, rows, data=data)


def budgets(bench: Bench) -> Section:
    """table:3 and table:4: OFMS-FT with more and with less memory."""
    rows = [[f"B = {budget}"] for budget in BUDGETS]
    header = [""]
    runs = {(column, budget): bench.runs(column, budget=budget) for column in bench.columns for budget in BUDGETS}
    for column in bench.columns:
        published = in_paper("budgets", column)
        header += [f"{title_of(column)}, {unit(column)}", *(["paper"] if published else [])]
        for budget, row in zip(BUDGETS, rows, strict=True):
            row += [show(summarise(runs[column, budget])), *([show(published.get(budget))] if published else [])]
    table = Table(
        "budgets",
        "OFMS-FT, mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        notes=[
            seeds_note((column, records) for (column, _), records in runs.items()),
            *synthetic_note(bench.columns),
        ],
        data=[record_data(record) for records in runs.values() for record in records],
    )
    return Section(
        "budgets", "Memory", "OFMS-FT when clients hold 2, 5 or 10 models (the paper's tables 3 and 4).", [table]
    )


def mixed_budgets(bench: Bench) -> Section:
    """table:1: some clients with three models, the others with five."""
    columns = [column for column in bench.columns if column.startswith("wec")]
    if not columns:
        return Section("mixed-budgets", "Mixed memory", "Measured on WEC, which was not asked for.")
    runs = {(column, shares): bench.runs(column, budget=shares) for column in columns for shares in MIXED}
    rows = []
    for shares in MIXED:
        row = [shares.replace(",", ", ").replace(":", " for ")]
        for column in columns:
            published = in_paper("mixed-budgets", column)
            row += [show(summarise(runs[column, shares])), show(published.get(shares))]
        rows.append(row)
    header = ["B", *(cell for column in columns for cell in (f"{title_of(column)}, MSE ×10⁻³", "paper"))]
    table = Table(
        "mixed-budgets",
        "OFMS-FT, clients of two sizes",
        header,
        rows,
        notes=[seeds_note((column, records) for (column, _), records in runs.items()), *synthetic_note(columns)],
        data=[record_data(record) for records in runs.values() for record in records],
    )
    text = (
        "Clients of both sizes are spread evenly over the sites; E is half of the summed budgets (the paper's table 1)."
    )
    return Section("mixed-budgets", "Mixed memory", text, [table])


def run_time(bench: Bench) -> Section:
    """table:5: the processor time of a client."""
    entries: list[tuple[str, str, dict[str, Any], str]] = []
    for name, shown in POLICIES.items():
        if name != "ofms-ft":
            entries.append((shown, name, {}, name))
        if name == "non-fed-oms":
            entries.append((f"{shown}, losses of all stored models", name, {"feedback": "all"}, name))
    entries += [(f"OFMS-FT, B = {budget}", "ofms-ft", {"budget": budget}, f"ofms-ft {budget}") for budget in ("5", "2")]
    rows: list[list[str]] = []
    data = []
    for shown, name, given, key in entries:
        row = [shown]
        for column in bench.columns:
            size = bench.size.given(column) | {"clients": _CLIENTS_TIMED}
            found = bench.store.records([Cell(column, name, 0, size | given, loopback=True)])
            seconds = [record.client_seconds for record in found if record.client_seconds is not None]
            published = in_paper("run-time", column)
            row.append(f"{np.mean(seconds):.2f}" if seconds else "–")
            row += [f"{published[key]:.2f}" if key in published else ""] if published else []
            data += [record_data(record) for record in found]
        rows.append(row)
    header = [""]
    for column in bench.columns:
        header += [f"{title_of(column)}, s", *(["paper"] if in_paper("run-time", column) else [])]
    note = (
        f"Measured on the loopback, {_CLIENTS_TIMED} clients, one thread, processor time: messages, predictions "
        "and fine-tuning. A client evaluates what its policy learns from: all models that it holds with OFMS-FT and "
        "budgeted expert advice, else the one that predicts. The paper does not say which losses Non-Fed-OMS observes: "
        "its figure stands beside both. Its seconds are of another machine; the ratios are what to compare."
    )
    table = Table("run-time", "Seconds that a client spends in all rounds", header, rows, notes=[note], data=data)
    return Section("run-time", "Run time", "What a client spends, by policy and memory (the paper's table 5).", [table])


def regret(bench: Bench) -> Section:
    """fig:1: average regret over rounds for several budgets; and with the theorems' settings, the bound."""
    columns = [column for column in bench.columns if column == "mnist" or column.startswith("wec")]
    if not columns:
        return Section("regret", "Regret over rounds", "Drawn for MNIST and WEC, which were not asked for.")
    figures = []
    for name, preset, title in (
        ("regret", "published", "as published (raw loss: no bound is known)"),
        ("regret-theory", "theory", "as in the theorems, with their bound"),
    ):
        panels = []
        for column in columns:
            curves = []
            for budget in BUDGETS:
                found = bench.runs(column, budget=budget, preset=preset)
                if found:
                    curves.append(regret_curve(f"B = {budget}", found))
            panels.append((title_of(column), curves))
        figures.append(Figure(name, f"Average regret of OFMS-FT's clients, {title}", panels, "average regret"))
    rows, data = [], []
    for column in columns:
        for budget in BUDGETS:
            found = bench.runs(column, budget=budget, preset="theory")
            data += [record_data(record) | {"bound": record.bound} for record in found]
            rounds = found[0].config.rounds if found else 1
            bounds = [record.bound for record in found if record.bound is not None]
            rows.append(
                [
                    f"{title_of(column)}, B = {budget}",
                    f"{np.mean([np.mean(record.regret) for record in found]) / rounds:.4f}" if found else "–",
                    f"{np.mean(bounds) / rounds:.4f}" if bounds else "–",
                ]
            )
    table = Table(
        "regret-theory",
        "Average regret at the last round with the theorems' settings",
        ["", "average regret", "its bound"],
        rows,
        notes=synthetic_note(columns),
        data=data,
    )
    text = "The paper's figure 1. Below it the same with the theorems' settings, where their bound holds."
    return Section("regret", "Regret over rounds", text, [table], figures)
