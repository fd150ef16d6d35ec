"""Measurements beyond the paper's: the cells of each table."""

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
from ofms.policies.ofms_ft import build
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.settings import identifying
from ofms.reproduction.bench import IMAGE_SETS, Bench, Figure, Section, title_of
from ofms.reproduction.comparison import comparison
from ofms.reproduction.convex import Problem, server_curve
from ofms.reproduction.summaries import (
    bytes_per_round,
    mean_figure,
    result_data,
    show,
    summarise,
    synthetic_note,
    unit,
)
from ofms.runs.result import Result

_SERVER_SEEDS = 5


def digits(bench: Bench) -> Section:
    """All policies on the digits of scikit-learn, in minutes and without a download."""
    if bench.chosen and "digits" not in bench.columns:
        return Section("digits", "Digits", "Not requested.")
    section = comparison(replace(bench, columns=["digits"]))
    tables = [
        replace(table, name=name) for name, table in zip(("digits", "digits-traffic"), section.tables, strict=True)
    ]
    text = "The same policies on small networks, without a download; the paper has no such column."
    return Section("digits", "Digits", text, tables)


def gain(bench: Bench) -> Section:
    """Gain of fine-tuning over selection from a frozen dictionary, and its effect on the models."""
    header = ["", "fine-tuned", "frozen", "with the server's mean (3r2)", "a random model", "the best in hindsight"]
    rows, data = [], []
    for column in bench.columns:
        tuned, frozen = bench.runs(column), bench.runs(column, fine_tuning_rate=0)
        mean = bench.runs(column, server_step=1) if column not in IMAGE_SETS else []
        data += [result_data(result) for results in (tuned, frozen, mean) for result in results]
        change = [_change(frozen, tuned, key) for key in ("random_model", "best_in_hindsight")]
        figures = [show(summarise(results)) for results in (tuned, frozen, mean)]
        rows.append([f"{title_of(column)}, {unit(column, bench.store.trust)}", *figures, *change])
    notes = [
        "A random model, and each client's best one in hindsight: frozen → fine-tuned. "
        "The server's mean is measured only where a run takes seconds.",
        *synthetic_note(bench.columns),
    ]
    table = Table("gain", "OFMS-FT with and without fine-tuning", header, rows, notes=notes, data=data)
    return Section("gain", "Gain of fine-tuning", "OFMS-FT with and without fine-tuning, on the same draws.", [table])


def _change(before: list[Result], after: list[Result], key: str) -> str:
    """A figure before and after a change."""
    if not before or not after:
        return "–"
    return " → ".join(f"{mean_figure(results, key):.2f}" for results in (before, after))


def exchange_interval(bench: Bench) -> Section:
    """The effect of less frequent exchanges."""
    table = _sweep(bench, "interval", "interval", ["1", "5", "10", "25"], "Exchange every n rounds", "n = {}")
    text = "Clients exchange messages with the server every n rounds (the communication rounds of th:5)."
    return Section("interval", "Exchange interval", text, [table])


def uplink(bench: Bench) -> Section:
    """The effect of the upload bandwidth."""
    table = _sweep(bench, "bandwidth", "bandwidth", ["10%", "25%", "50%", "110%"], "Bandwidth E", "E = {}")
    return Section(
        "bandwidth", "Bandwidth", "E as a share of the summed budgets; one of α groups uploads per exchange.", [table]
    )


def _sweep(bench: Bench, name: str, key: str, values: Sequence[str], title: str, label: str) -> Table:
    columns = bench.small_columns()
    rows, data = [], []
    header = [""]
    for column in columns:
        header += [f"{title_of(column)}, {unit(column, bench.store.trust)}", "down", "up", "α"]
    for value in values:
        row = [label.format(value)]
        for column in columns:
            setting: dict[str, Any] = {key: int(value) if key == "interval" else value}
            found = bench.runs(column, **setting)
            groups = [result.figures["groups"] for result in found]
            data += [result_data(result) | {key: value, "groups": result.figures["groups"]} for result in found]
            row += [
                show(summarise(found)),
                bytes_per_round(found, "down"),
                bytes_per_round(found, "up"),
                f"{np.mean(groups):.1f}" if groups else "–",
            ]
        rows.append(row)
    notes = ["Bytes per client and round.", *synthetic_note(columns)]
    return Table(name, f"{title}: OFMS-FT", header, rows, notes=notes, data=data)


def server(bench: Bench) -> Section:
    """The server's regret (10r2) on a problem that satisfies every assumption of the theorems."""
    costs = np.array([4, 3, 3, 2, 2, 2], dtype=np.int64)
    budgets = np.array([7, 8, 9, 10, 7, 12] * 3, dtype=np.int64)
    catalogue = Catalogue(tuple("abcdef"), costs, costs.copy(), np.zeros(6, dtype=np.int64))
    settings = OFMSFT()
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
            "settings": identifying(asdict(settings), OFMSFT),
        }
        curve = bench.store.curves.find(f"server-regret-rounds{rounds}", made, compute)
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
    text = "Measured on a convex problem, where the best parameters and a bound on the gradients are known."
    return Section("server", "The server's regret", text, [table], figures)
