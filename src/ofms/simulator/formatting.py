"""What a result looks like: tables and curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ofms.core.typing import Floats
from ofms.drawing.charts import Curve, draw_curves
from ofms.drawing.tables import format_table

if TYPE_CHECKING:
    from ofms.simulator.result import Result


REGRET_LABEL = "average regret (selection loss)"


def format_score(score: Floats, metric: str) -> str:
    """Mean ± std over clients: accuracy in percent, squared errors in thousandths.

    >>> import numpy as np
    >>> format_score(np.array([0.9, 0.8]), "accuracy"), format_score(np.array([0.007, 0.009]), "mse")
    ('85.00 ± 5.00 %', '8.00 ± 1.00 ×10⁻³')
    """
    factor, unit = (100, " %") if metric == "accuracy" else (1000, " ×10⁻³")
    return f"{factor * score.mean():.2f} ± {factor * score.std():.2f}{unit}"


def format_regret(result: Result) -> str:
    """Average regret: a round's mean over clients."""
    return f"{result.regret().mean() / result.config.rounds:.4f}" if result.hindsight else "–"


def format_bound(result: Result) -> str:
    """The bound on the average regret where the theorems cover the run."""
    return "not covered" if result.bound is None else f"{result.bound.mean() / result.config.rounds:.4f}"


def comparison_table(rows: Sequence[tuple[str, Result]], reference: Result) -> str:
    """Runs side by side, then what `reference` would have come to with a random model, and with the best one."""
    metric = reference.metric
    cells = [
        [name, format_score(result.score, metric), format_regret(result), format_bound(result)] for name, result in rows
    ]
    for name, score in (
        ("a uniformly random model", reference.random_model),
        ("the best model in hindsight", reference.best_in_hindsight),
    ):
        if score is not None:
            cells.append([name, format_score(score, metric), "", ""])
    table = format_table(["", f"{metric}, mean ± std over clients", "average regret", "its bound"], cells)
    if len({result.config.settings.get("loss_bound") for _, result in rows}) > 1:
        table += "\n(regret in each row's own loss of selection: bounded in the theorems, raw as published)"
    return table


def result_table(result: Result) -> str:
    """One run."""
    table = comparison_table([(result.config.policy, result)], result)
    return table if result.bound is not None else f"{table}\nbound not covered: {result.not_covered}"


def regret_curve(name: str, result: Result) -> Curve:
    """Average regret over rounds, its spread over clients, and its bound at the end where it is covered."""
    rounds = np.arange(1, len(result.lines) + 1)
    low, _, high = (np.array([line["regret_quantiles"] for line in result.lines]) / rounds[:, None]).T
    bound = None if result.bound is None else float(result.bound.mean()) / len(rounds)
    return Curve(name, result.over_rounds("regret") / rounds, low, high, bound)


def draw_regret(runs: Sequence[tuple[str, Result]], path: Path) -> None:
    """The average regret of clients over rounds, with its spread, and the bound where it is covered."""
    draw_curves([("", [regret_curve(name, result) for name, result in runs])], [path], ylabel=REGRET_LABEL)
