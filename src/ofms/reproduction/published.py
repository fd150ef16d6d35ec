"""The cells of the paper's tables 1 and 3 to 5 and of its figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.drawing.tables import Table
from ofms.reproduction.bench import BUDGETS, MIXED, POLICIES, Bench, Figure, Section, title_of
from ofms.reproduction.cells import Cell
from ofms.reproduction.summaries import (
    in_paper,
    known_bounds,
    mean_regret_curve,
    result_data,
    seeds_note,
    show,
    summarise,
    synthetic_note,
    unit,
)

_CLIENTS_TIMED = 2


def budgets(bench: Bench) -> Section:
    """table:3 and table:4: OFMS-FT with different budgets."""
    rows = [[f"B = {budget}"] for budget in BUDGETS]
    header = [""]
    runs = {(column, budget): bench.runs(column, budget=budget) for column in bench.columns for budget in BUDGETS}
    for column in bench.columns:
        published = in_paper("budgets", column)
        header += [f"{title_of(column)}, {unit(column, bench.store.trust)}", *(["paper"] if published else [])]
        for budget, row in zip(BUDGETS, rows, strict=True):
            row += [show(summarise(runs[column, budget])), *([show(published.get(budget))] if published else [])]
    table = Table(
        "budgets",
        "OFMS-FT, mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        notes=[
            seeds_note((column, results) for (column, _), results in runs.items()),
            *synthetic_note(bench.columns),
        ],
        data=[result_data(result) for results in runs.values() for result in results],
    )
    return Section(
        "budgets", "Memory", "OFMS-FT when clients hold 2, 5 or 10 models (the paper's tables 3 and 4).", [table]
    )


def mixed_budgets(bench: Bench) -> Section:
    """table:1: a part of the clients with B = 3, the others with B = 5."""
    columns = [column for column in bench.columns if column.startswith("wec")]
    if not columns:
        return Section("mixed-budgets", "Mixed memory", "Measured on WEC, which was not requested.")
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
        "OFMS-FT, clients with two budgets",
        header,
        rows,
        notes=[seeds_note((column, results) for (column, _), results in runs.items()), *synthetic_note(columns)],
        data=[result_data(result) for results in runs.values() for result in results],
    )
    text = "Both budgets are spread evenly over the sites; E is half of the summed budgets (the paper's table 1)."
    return Section("mixed-budgets", "Mixed memory", text, [table])


def run_time(bench: Bench) -> Section:
    """table:5: processor time per client."""
    entries: list[tuple[str, str, dict[str, Any], str]] = []
    for name, shown in POLICIES.items():
        if name == "rms-ft":
            # The time does not depend on the weights, and all rows were measured with the same version.
            entries.append((f"{shown}, gradients of weight one", name, {"gradient_weight": "one"}, name))
        elif name != "ofms-ft":
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
            found = bench.store.results([Cell(column, name, 0, size | given, loopback=True)])
            seconds = [result.figures["client_seconds"] for result in found]
            published = in_paper("run-time", column)
            row.append(f"{np.mean(seconds):.2f}" if seconds else "–")
            row += [f"{published[key]:.2f}" if key in published else ""] if published else []
            data += [result_data(result) for result in found]
        rows.append(row)
    header = [""]
    for column in bench.columns:
        header += [f"{title_of(column)}, s", *(["paper"] if in_paper("run-time", column) else [])]
    note = (
        f"Processor time of messages, predictions and fine-tuning on the loopback: {_CLIENTS_TIMED} clients, one "
        "thread. A client evaluates the models that its policy learns from: all held models with OFMS-FT and budgeted "
        "expert advice, otherwise the one that predicts. The paper does not say which losses Non-Fed-OMS observes; its "
        "figure is beside both. Its seconds are from another machine: compare ratios."
    )
    table = Table("run-time", "Seconds per client, all rounds", header, rows, notes=[note], data=data)
    return Section(
        "run-time", "Run time", "Processor time per client, by policy and memory (the paper's table 5).", [table]
    )


def regret(bench: Bench) -> Section:
    """fig:1: average regret over rounds for several budgets; with the theorems' settings, also the bound."""
    columns = [column for column in bench.columns if column == "mnist" or column.startswith("wec")]
    if not columns:
        return Section("regret", "Regret over rounds", "Drawn for MNIST and WEC, which were not requested.")
    figures = []
    for name, preset, title in (
        ("regret", "published", "as published (raw loss: no bound)"),
        ("regret-theory", "theory", "as in the theorems, with their bound"),
    ):
        panels = []
        for column in columns:
            curves = []
            for budget in BUDGETS:
                found = bench.runs(column, budget=budget, preset=preset)
                if found:
                    curves.append(mean_regret_curve(f"B = {budget}", found))
            panels.append((title_of(column), curves))
        figures.append(Figure(name, f"Average regret of OFMS-FT's clients, {title}", panels, "average regret"))
    rows, data = [], []
    for column in columns:
        for budget in BUDGETS:
            found = bench.runs(column, budget=budget, preset="theory")
            data += [result_data(result) | {"bound": result.figures["bound"]} for result in found]
            rounds = found[0].config.rounds if found else 1
            regrets, bounds = [result.regret().mean() for result in found], known_bounds(found)
            rows.append(
                [
                    f"{title_of(column)}, B = {budget}",
                    f"{np.mean(regrets) / rounds:.4f}" if found else "–",
                    f"{np.mean(bounds) / rounds:.4f}" if bounds else "–",
                ]
            )
    table = Table(
        "regret-theory",
        "Average regret at the last round with the theorems' settings",
        ["", "average regret", "its bound"],
        rows,
        notes=[
            "The bound is against the best of the fine-tuned models (docs/theory.md); above 1 it says nothing.",
            *synthetic_note(columns),
        ],
        data=data,
    )
    text = "The paper's figure 1, then the same with the theorems' settings, where their bound holds."
    return Section("regret", "Regret over rounds", text, [table], figures)
