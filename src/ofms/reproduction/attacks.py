"""Hostile clients: the error of the honest ones, by attack and aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.attacks import Attack
from ofms.drawing.dots import Dot, DotPanel
from ofms.drawing.tables import Table
from ofms.reproduction.bench import Bench, DotFigure, Section, title_of
from ofms.reproduction.summaries import factor_of, result_data, seeds_note, unit
from ofms.runs.result import Result

# With half of their rounds: there are many cells, and updates of each client are formed in most.
COLUMNS = {"air": 100, "digits": 200}
_POLICIES = {"late-hedge": "late hedging", "ofms-ft": "OFMS-FT"}
_AGGREGATIONS = ("sum", "clipped", "trimmed-mean", "median")
_ATTACKS = {"sign-flip": "sign flip", "random": "random", "largest": "largest norm"}
_SHARES = {0.1: "1 in 10", 0.3: "3 in 10"}
_CASES: dict[str | None, str] = {None: "no attack"} | {
    f"{kind}:{share}": f"{title}, {words}" for kind, title in _ATTACKS.items() for share, words in _SHARES.items()
}
# All columns are of the same clients: those that are honest in each.
_MOST_HOSTILE = Attack("largest", max(_SHARES))

Runs = dict[tuple[str, str | None], list[Result]]


def attacks(bench: Bench) -> Section:
    """Aggregations under attack, one table and one chart per dataset."""
    columns = list(bench.columns if bench.chosen else COLUMNS)
    bench = replace(bench, size=replace(bench.size, seeds=bench.size.seeds or 1))
    tables, figures = [], []
    for column in columns:
        size = {} if bench.size.quick or column not in COLUMNS else {"rounds": COLUMNS[column]}
        runs = {
            (f"{policy} {aggregation}", attack): bench.runs(column, policy, **size, **_given(aggregation, attack))
            for policy in _POLICIES
            for aggregation in _AGGREGATIONS
            for attack in _CASES
        }
        frozen = {policy: bench.runs(column, policy, **size, fine_tuning_rate=0) for policy in _POLICIES}
        tables.append(_table(bench, column, runs, frozen))
        figures += _figure(bench, column, runs, frozen)
    text = (
        "Some clients upload hostile updates: `sign-flip`, their own reversed; `random`, in a random direction with "
        "the largest norm and weight that a server accepts (the norm of the parameters, α·K); `largest`, their own "
        "reversed with that norm and weight. The figures are of the clients that are honest in all columns. Frozen: "
        "the same policy without fine-tuning, which no update can harm."
    )
    return Section("attacks", "Hostile clients", text, tables, figures)


def _given(aggregation: str, attack: str | None) -> dict[str, Any]:
    given: dict[str, Any] = {} if aggregation == "sum" else {"aggregation": aggregation}
    return given if attack is None else given | {"attack": attack}


def honest_mean(results: Sequence[Result]) -> tuple[float, float] | None:
    """Mean over the honest clients and its standard deviation over them, averaged over seeds, in the table's units."""
    if not results:
        return None
    scores = [
        result.score[~_MOST_HOSTILE.hostile(result.config.seed, result.config.clients)] * factor_of(results)
        for result in results
    ]
    return float(np.mean([each.mean() for each in scores])), float(np.mean([each.std() for each in scores]))


def _table(bench: Bench, column: str, runs: Runs, frozen: dict[str, list[Result]]) -> Table:
    rows, bold = [], set()
    for policy, title in _POLICIES.items():
        for aggregation in _AGGREGATIONS:
            found = [honest_mean(runs[f"{policy} {aggregation}", attack]) for attack in _CASES]
            rows.append([f"{title}, {aggregation}", *map(_shown, found)])
        rows.append([f"{title}, frozen", _shown(honest_mean(frozen[policy])), *([""] * (len(_CASES) - 1))])
    best = max if unit(column, bench.store.trust) == "%" else min
    for place, attack in enumerate(_CASES, 1):
        for start, policy in zip(range(0, len(rows), len(_AGGREGATIONS) + 1), _POLICIES, strict=True):
            values = [honest_mean(runs[f"{policy} {each}", attack]) for each in _AGGREGATIONS]
            known = [(value[0], start + row) for row, value in enumerate(values) if value is not None]
            if known:
                bold.add((best(known)[1], place))
    return Table(
        f"attacks-{Path(column).stem}",
        f"{title_of(column)} with hostile clients: the honest ones' mean, {unit(column, bench.store.trust)}",
        ["", *_CASES.values()],
        rows,
        frozenset(bold),
        notes=[seeds_note((column, results) for results in runs.values())],
        data=[
            {"row": row, "attack": attack, "honest": honest_mean([result])} | result_data(result)
            for (row, attack), results in runs.items()
            for result in results
        ],
    )


def _shown(figures: tuple[float, float] | None) -> str:
    if figures is None:
        return "–"
    return f"{figures[0]:.2f}" if figures[0] < 1e4 else f"{figures[0]:.0e}"


def _figure(bench: Bench, column: str, runs: Runs, frozen: dict[str, list[Result]]) -> list[DotFigure]:
    """A panel for each policy: its aggregations under the attack that does most; dotted without fine-tuning."""
    panels = []
    worst = f"{_MOST_HOSTILE.kind}:{_MOST_HOSTILE.share}"
    for policy, title in _POLICIES.items():
        dots = []
        for aggregation in _AGGREGATIONS:
            for attack in (None, worst):
                figure = honest_mean(runs[f"{policy} {aggregation}", attack])
                label = f"{aggregation}, {_CASES[attack]}"
                # A model that was destroyed has an error that no axis shows.
                off = figure is None or figure[0] > _off_scale(frozen[policy])
                dots.append(Dot(label, None) if off or figure is None else Dot(label, *figure))
        still = honest_mean(frozen[policy])
        panels.append(DotPanel(title, unit(column, bench.store.trust), dots, None if still is None else still[0]))
    shown = [panel for panel in panels if any(dot.value is not None for dot in panel.dots)]
    title = f"{title_of(column)}: the honest clients with and without hostile ones; dotted: without fine-tuning"
    return [DotFigure(f"attacks-{Path(column).stem}", title, shown)] if shown else []


def _off_scale(frozen: Sequence[Result]) -> float:
    still = honest_mean(frozen)
    return float("inf") if still is None else 10 * still[0]
