"""The paper's tables and its figure, and what its readers would ask for next: which cells each of them shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.drawing.charts import Curve
from ofms.drawing.tables import Table
from ofms.policies.ofms_ft import Settings, build
from ofms.policies.protocol import Fleet
from ofms.policies.registry import setting_names
from ofms.reproduction.bench import BUDGETS, IMAGE_SETS, MIXED, POLICIES, Bench, Figure, Section, title_of
from ofms.reproduction.cells import Cell, Record
from ofms.reproduction.convex import Problem, server_curve
from ofms.reproduction.summaries import (
    best_row,
    bytes_a_round,
    paper,
    paper_column,
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

FROZEN: dict[str, Any] = {"fine_tuning_rate": 0}
_CLIENTS_TIMED = 2


def comparison(bench: Bench, policies: Iterable[str] = tuple(POLICIES), **given: Any) -> Section:
    """table:2: all policies on all datasets; and what they send."""
    names = list(policies)
    known = {name: setting_names(name) | RUN_FIELDS for name in names}
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
        published = paper("comparison").get(paper_column(column), {})
        header += [f"{title_of(column)}, {unit(column)}", "paper"]
        figures = {name: summarise(runs[name, column]) for name in names}
        for name, row in zip(names, rows, strict=True):
            row += [show(figures[name]), show(published.get(name))]
        place = best_row([figures[name] for name in names], runs_of(runs, column))
        if place is not None:
            bold.add((place, len(header) - 2))
    for label, key in (
        ("a uniformly random model", "random_model"),
        ("the best model in hindsight", "best_in_hindsight"),
    ):
        row = [f"{label} (of OFMS-FT's run)"]
        for column in bench.columns:
            found = runs.get(("ofms-ft", column), [])
            row += [f"{scale(found) * np.mean([getattr(run, key) for run in found]):.2f}" if found else "–", ""]
        rows.append(row)
    table = Table(
        "comparison",
        "Mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        frozenset(bold),
        notes=[seeds_note(bench, bench.columns), *synthetic_note(bench.columns)],
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
        known = setting_names(name) | RUN_FIELDS
        some = {key: value for key, value in given.items() if key in known}
        folders += [bench.store.run_folder(Cell(column, name, 0, some)) for column in bench.columns]
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
    header, data = [""], []
    for column in bench.columns:
        published = paper("budgets").get(paper_column(column), {})
        found = {budget: bench.runs(column, budget=budget) for budget in BUDGETS}
        header += [f"{title_of(column)}, {unit(column)}", "paper"]
        for budget, row in zip(BUDGETS, rows, strict=True):
            row += [show(summarise(found[budget])), show(published.get(budget))]
            data += [record_data(record) for record in found[budget]]
    table = Table(
        "budgets",
        "OFMS-FT, mean ± standard deviation over clients; accuracy in %, squared errors ×10⁻³",
        header,
        rows,
        notes=[seeds_note(bench, bench.columns), *synthetic_note(bench.columns)],
        data=data,
    )
    return Section(
        "budgets", "Memory", "OFMS-FT when clients hold 2, 5 or 10 models (the paper's tables 3 and 4).", [table]
    )


def mixed_budgets(bench: Bench) -> Section:
    """table:1: some clients with three models, the others with five."""
    columns = [column for column in bench.columns if column.startswith("wec")]
    if not columns:
        return Section("mixed-budgets", "Mixed memory", "Measured on WEC, which was not asked for.")
    rows, data = [], []
    for shares in MIXED:
        row = [shares.replace(",", ", ").replace(":", " for ")]
        for column in columns:
            found = bench.runs(column, budget=shares)
            published = paper("mixed-budgets").get(paper_column(column), {})
            row += [show(summarise(found)), show(published.get(shares))]
            data += [record_data(record) for record in found]
        rows.append(row)
    header = ["B", *(cell for column in columns for cell in (f"{title_of(column)}, MSE ×10⁻³", "paper"))]
    table = Table(
        "mixed-budgets",
        "OFMS-FT, clients of two sizes",
        header,
        rows,
        notes=[seeds_note(bench, columns), *synthetic_note(columns)],
        data=data,
    )
    text = (
        "Clients of both sizes are spread evenly over the sites; E is half of the summed budgets (the paper's table 1)."
    )
    return Section("mixed-budgets", "Mixed memory", text, [table])


def run_time(bench: Bench) -> Section:
    """table:5: the processor time of a client."""
    entries = [(name, None) for name in POLICIES if name != "ofms-ft"] + [("ofms-ft", "5"), ("ofms-ft", "2")]
    rows: list[list[str]] = []
    data = []
    for name, budget in entries:
        row = [POLICIES[name] if budget is None else f"OFMS-FT, B = {budget}"]
        for column in bench.columns:
            given = bench.size.given(column) | {"clients": _CLIENTS_TIMED} | ({"budget": budget} if budget else {})
            found = bench.store.records([Cell(column, name, 0, given, loopback=True)])
            seconds = [record.client_seconds for record in found if record.client_seconds is not None]
            published = paper("run-time").get(paper_column(column), {}).get(f"{name} {budget}" if budget else name)
            row += [f"{np.mean(seconds):.2f}" if seconds else "–", "" if published is None else f"{published:.2f}"]
            data += [record_data(record) for record in found]
        rows.append(row)
    header = ["", *(cell for column in bench.columns for cell in (f"{title_of(column)}, s", "paper"))]
    note = (
        f"Measured on the loopback, {_CLIENTS_TIMED} clients, one thread, processor time: messages, predictions "
        "and fine-tuning. The paper's seconds are of another machine; the ratios are what to compare."
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
    rows = []
    for column in columns:
        for budget in BUDGETS:
            found = bench.runs(column, budget=budget, preset="theory")
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
    )
    text = "The paper's figure 1. Below it the same with the theorems' settings, where their bound holds."
    return Section("regret", "Regret over rounds", text, [table], figures)


def gain(bench: Bench) -> Section:
    """What fine-tuning adds to selection from a frozen dictionary, and what it does to the models."""
    header = ["", "fine-tuned", "frozen", "with the mean of (3r2)", "a random model", "the best in hindsight"]
    rows, data = [], []
    for column in bench.columns:
        tuned, frozen = bench.runs(column), bench.runs(column, **FROZEN)
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
    columns = bench.regression()
    rows, data = [], []
    header = [""]
    for column in columns:
        header += [f"{title_of(column)}, MSE ×10⁻³", "down", "up", "α"]
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
    budgets_in_bytes = np.array([7, 8, 9, 10, 7, 12] * 3, dtype=np.int64)
    catalogue = Catalogue(tuple("abcdef"), costs, costs.copy(), np.zeros(6, dtype=np.int64))
    rows, curves = [], []
    for rounds in (100, 300, 1000) if bench.size.quick else (100, 300, 1000, 3000):
        fleet = Fleet(catalogue, budgets_in_bytes, int(budgets_in_bytes.sum()) // 2, Schedule(rounds))
        compute = partial(server_curve, fleet, build(Settings(), fleet), Problem.random(18, rounds, 6), 5)
        curve = bench.store.computed(f"server-regret-rounds{rounds}", compute)
        if curve is None:
            rows.append([f"T = {rounds:,}", "–", "–"])
            continue
        steps = np.arange(1, rounds + 1)
        rows.append([f"T = {rounds:,}", f"{curve.regret[-1] / rounds:.4f}", f"{curve.bound / rounds:.4f}"])
        curves.append(Curve(f"T = {rounds:,}", curve.regret / steps, bound=curve.bound / rounds))
    table = Table(
        "server-regret",
        "The server's average regret at the last round",
        ["", "average regret", "its bound"],
        rows,
        notes=[
            "Six linear models, 18 clients, the absolute error, rates tuned to T; mean over models and five seeds "
            "(`ofms reproduce server`)."
        ],
    )
    title = "The server's average regret on a convex problem"
    figures = [Figure("server-regret", title, [("", curves)], "average regret")] if curves else []
    text = "For networks neither the best parameters nor the gradients' bound are known; on a convex problem both are."
    return Section("server", "The server's regret", text, [table], figures)


def choices(bench: Bench) -> Section:
    """What the paper does not say of its baselines: every choice, and whether its figure lies among them."""
    column = "air"
    if column not in bench.columns:
        return Section("choices", "Unpublished choices", "Measured on Air, which was not asked for.")
    if not bench.has_cells(column):
        return Section("choices", "Unpublished choices", "Measured on Air, whose models are not trained yet.")
    models = len(bench.store.dictionary(column)[0])
    rows, data = [], []
    for name in (policy for policy in POLICIES if policy in paper("comparison")[column] and policy != "ofms-ft"):
        for label, variants, seeds in _choices_of(name, models):
            found = [
                record
                for given in variants
                for record in bench.store.records(
                    Cell(column, name, seed, bench.size.given(column) | given) for seed in seeds(bench)
                )
            ]
            means = [1000 * record.mean for record in found]
            published = paper("comparison")[column][name][0]
            inside = "yes" if means and min(means) <= published <= max(means) else "no"
            rows.append(
                [
                    f"{POLICIES[name]}: {label}",
                    str(len(means)),
                    f"{np.mean(means):.2f}" if means else "–",
                    f"{min(means):.2f} to {max(means):.2f}" if means else "–",
                    f"{published:.2f}",
                    inside if means else "–",
                ]
            )
            data += [record_data(record) for record in found]
    header = ["Air, MSE ×10⁻³", "runs", "mean", "range", "paper", "inside?"]
    table = Table("choices", "What the paper leaves open for its baselines", header, rows, data=data)
    text = "Air on the given dictionary. A row varies one choice; the others are as in the experiment's file."
    return Section("choices", "Unpublished choices", text, [table])


_Seeds = Callable[[Bench], range]


def _choices_of(name: str, models: int) -> list[tuple[str, list[dict[str, Any]], _Seeds]]:
    """(what varies, its variants, the seeds of each)."""

    def all_seeds(bench: Bench) -> range:
        return bench.size.seed_range("air")

    def one_seed(bench: Bench) -> range:
        return range(1)

    one_model: list[tuple[str, list[dict[str, Any]], _Seeds]] = [
        (f"each of the {models} models", [{"model": model} for model in range(models)], one_seed),
        ("batches of 1, 10, 32, 51", [{"batch_size": size} for size in (1, 10, 32, 51)], one_seed),
        ("all upload, or half of the clients", [{"upload_groups": groups} for groups in (1, 2)], one_seed),
    ]
    own_exp3: list[tuple[str, list[dict[str, Any]], _Seeds]] = [
        ("random subsets, another with each seed", [{}], all_seeds),
        ("the first models that fit", [{"subset": "first"}], all_seeds),
        ("feedback of all stored models", [{"feedback": "all"}], all_seeds),
        ("exploration of 0.1", [{"exploration": 0.1}], all_seeds),
    ]
    known: dict[str, list[tuple[str, list[dict[str, Any]], _Seeds]]] = {
        "mab": [("as in the file", [{}], all_seeds), ("exploration of 0.1", [{"exploration": 0.1}], all_seeds)],
        "non-fed-oms": own_exp3,
        "b-fed-omft": [*own_exp3, ("the server's mean of (3r2)", [{"server_step": 1}], all_seeds)],
        "rms-ft": [
            ("as in the file", [{}], all_seeds),
            ("gradients over the share that is held", [{"gradient_weight": "inverse"}], all_seeds),
            ("the server's mean of (3r2)", [{"server_step": 1}], all_seeds),
        ],
        "fed-omd": one_model,
        "perfedavg": [
            *one_model,
            ("adapting at 0.0001, 0.001, 0.01", [{"adaptation_rate": rate} for rate in (1e-4, 1e-3, 1e-2)], one_seed),
        ],
    }
    return known[name]


TARGETS: dict[str, Callable[[Bench], Section]] = {
    "comparison": comparison,
    "budgets": budgets,
    "mixed-budgets": mixed_budgets,
    "run-time": run_time,
    "regret": regret,
    "gain": gain,
    "interval": exchange_interval,
    "bandwidth": uplink,
    "server": server,
    "choices": choices,
}
