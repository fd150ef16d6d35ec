"""What the paper lacks and its readers would ask for next: which cells each table shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.drawing.charts import Curve
from ofms.drawing.tables import Table
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft import Settings, build
from ofms.reproduction.bench import IMAGE_SETS, Bench, Figure, Section, title_of
from ofms.reproduction.cells import Record
from ofms.reproduction.convex import Problem, server_curve
from ofms.reproduction.published import comparison
from ofms.reproduction.summaries import (
    bytes_a_round,
    record_data,
    scale,
    show,
    summarise,
    synthetic_note,
    unit,
)

_SERVER_SEEDS = 5


def digits(bench: Bench) -> Section:
    """All policies on the data that comes with scikit-learn: minutes, for anybody."""
    if bench.chosen and "digits" not in bench.columns:
        return Section("digits", "Digits", "Not asked for.")
    section = comparison(replace(bench, columns=["digits"]))
    tables = [
        replace(table, name=name) for name, table in zip(("digits", "digits-traffic"), section.tables, strict=True)
    ]
    text = "The same policies on small networks, where nothing has to be downloaded; the paper has no such column."
    return Section("digits", "Digits", text, tables)


def gain(bench: Bench) -> Section:
    """What fine-tuning adds to selection from a frozen dictionary, and what it does to the models."""
    header = ["", "fine-tuned", "frozen", "with the mean of (3r2)", "a random model", "the best in hindsight"]
    rows, data = [], []
    for column in bench.columns:
        tuned, frozen = bench.runs(column), bench.runs(column, fine_tuning_rate=0)
        mean = bench.runs(column, server_step=1) if column not in IMAGE_SETS else []
        data += [record_data(record) for records in (tuned, frozen, mean) for record in records]
        change = [_change(frozen, tuned, key) for key in ("random_model", "best_in_hindsight")]
        figures = [show(summarise(records)) for records in (tuned, frozen, mean)]
        rows.append([f"{title_of(column)}, {unit(column)}", *figures, *change])
    notes = [
        "A random model, and each client's best one in hindsight: frozen → fine-tuned. "
        "The server's mean is run where a run takes seconds.",
        *synthetic_note(bench.columns),
    ]
    table = Table("gain", "OFMS-FT with and without fine-tuning", header, rows, notes=notes, data=data)
    return Section("gain", "What fine-tuning gains", "OFMS-FT on the same draws, with the dictionary frozen.", [table])


def _change(before: list[Record], after: list[Record], key: str) -> str:
    """What models came to in some runs, and in others."""
    if not before or not after:
        return "–"
    return " → ".join(f"{scale(runs) * np.mean([getattr(run, key) for run in runs]):.2f}" for runs in (before, after))


def exchange_interval(bench: Bench) -> Section:
    """The effect of talking to the server less often."""
    table = _sweep(bench, "interval", "interval", ["1", "5", "10", "25"], "Exchange every n rounds", "n = {}")
    text = "Clients talk to the server every n rounds (th:5's communication rounds)."
    return Section("interval", "Talking less often", text, [table])


def uplink(bench: Bench) -> Section:
    """The effect of the bandwidth."""
    table = _sweep(bench, "bandwidth", "bandwidth", ["10%", "25%", "50%", "110%"], "Bandwidth E", "E = {}")
    return Section(
        "bandwidth", "Bandwidth", "E as a share of the summed budgets: α groups, of which one uploads.", [table]
    )


def _sweep(bench: Bench, name: str, key: str, values: Sequence[str], title: str, label: str) -> Table:
    columns = bench.small_columns()
    rows, data = [], []
    header = [""]
    for column in columns:
        header += [f"{title_of(column)}, {unit(column)}", "down", "up", "α"]
    for value in values:
        row = [label.format(value)]
        for column in columns:
            setting: dict[str, Any] = {key: int(value) if key == "interval" else value}
            found = bench.runs(column, **setting)
            data += [record_data(record) | {key: value, "groups": record.groups} for record in found]
            groups = [record.groups for record in found]
            row += [
                show(summarise(found)),
                bytes_a_round(found, "down"),
                bytes_a_round(found, "up"),
                f"{np.mean(groups):.1f}" if groups else "–",
            ]
        rows.append(row)
    notes = ["Bytes are those of a client and round.", *synthetic_note(columns)]
    return Table(name, f"{title}: OFMS-FT", header, rows, notes=notes, data=data)


def server(bench: Bench) -> Section:
    """The server's regret (10r2) on a problem that meets every assumption of the theorems."""
    costs = np.array([4, 3, 3, 2, 2, 2], dtype=np.int64)
    budgets = np.array([7, 8, 9, 10, 7, 12] * 3, dtype=np.int64)
    catalogue = Catalogue(tuple("abcdef"), costs, costs.copy(), np.zeros(6, dtype=np.int64))
    settings = Settings()
    rows, curves, data = [], [], []
    for rounds in (100, 300, 1000) if bench.size.quick else (100, 300, 1000, 3000):
        fleet = Fleet(catalogue, budgets, int(budgets.sum()) // 2, Schedule(rounds))
        problem = Problem.random(budgets.size, rounds, costs.size)
        compute = partial(server_curve, fleet, build(settings, fleet), problem, _SERVER_SEEDS)
        made = {
            "costs": costs.tolist(),
            "budgets": budgets.tolist(),
            "bandwidth": fleet.bandwidth,
            "rounds": rounds,
            "seeds": _SERVER_SEEDS,
            "settings": asdict(settings),
        }
        curve = bench.store.computed(f"server-regret-rounds{rounds}", made, compute)
        if curve is None:
            rows.append([f"T = {rounds:,}", "–", "–"])
            continue
        average = {"regret": float(curve.regret[-1]) / rounds, "bound": curve.bound / rounds}
        rows.append([f"T = {rounds:,}", f"{average['regret']:.4f}", f"{average['bound']:.4f}"])
        data.append({"rounds": rounds, **average})
        curves.append(Curve(f"T = {rounds:,}", curve.regret / np.arange(1, rounds + 1), bound=average["bound"]))
    table = Table(
        "server-regret",
        "The server's average regret at the last round",
        ["", "average regret", "its bound"],
        rows,
        notes=[
            "Six linear models, 18 clients, the absolute error, rates tuned to T; mean over models and five seeds "
            "(`ofms reproduce server`)."
        ],
        data=data,
    )
    title = "The server's average regret on a convex problem"
    figures = [Figure("server-regret", title, [("", curves)], "average regret")] if curves else []
    text = "For networks neither the best parameters nor the gradients' bound are known; on a convex problem both are."
    return Section("server", "The server's regret", text, [table], figures)
