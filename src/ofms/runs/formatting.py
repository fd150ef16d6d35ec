"""Results as text tables and curves."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ofms.core.typing import Floats
from ofms.drawing.charts import Curve, draw_curves
from ofms.drawing.tables import format_table
from ofms.runs.warning_lines import mixed_bounds

if TYPE_CHECKING:
    from ofms.runs.result import Result


DRIFT_HEADER = ["average dynamic regret", "rounds until recovered"]
REGRET_LABEL = "average regret (selection loss)"
_LARGEST_DECIMAL = 1e9


def scale(metric: str) -> tuple[float, str]:
    """Factor and unit of a metric in tables and charts: accuracy in percent, squared errors in thousandths."""
    return (100.0, "%") if metric == "accuracy" else (1000.0, "×10⁻³")


def format_number(value: float) -> str:
    """Two decimals, or powers of ten if a model overflowed.

    >>> format_number(8.125), format_number(1.6e24)
    ('8.12', '1.6e+24')
    """
    return f"{value:.2f}" if abs(value) < _LARGEST_DECIMAL else f"{value:.3g}"


def format_score(score: Floats, metric: str) -> str:
    """Mean ± standard deviation over clients, with its unit.

    >>> import numpy as np
    >>> format_score(np.array([0.9, 0.8]), "accuracy"), format_score(np.array([0.007, 0.009]), "mse")
    ('85.00 ± 5.00 %', '8.00 ± 1.00 ×10⁻³')
    """
    factor, unit = scale(metric)
    return f"{format_number(factor * score.mean())} ± {format_number(factor * score.std())} {unit}"


def format_regret(result: Result) -> str:
    """Regret per round, mean over clients."""
    regret = result.figures["regret"]
    return "–" if regret is None else f"{regret / result.config.rounds:.4f}"


def format_bound(result: Result) -> str:
    """Bound on the regret per round, if the theorems cover the run."""
    bound = result.figures["bound"]
    return "not covered" if bound is None else f"{bound / result.config.rounds:.4f}"


def format_drift(result: Result) -> list[str]:
    """Dynamic regret per round and the rounds until recovered, mean over clients; dashes without drift."""
    if not result.drifts:
        return ["–", "–"]
    regret, recovery = result.figures["dynamic_regret"], result.figures["recovery"]
    per_round = "–" if regret is None else f"{regret / result.config.rounds:.4f}"
    return [per_round, "–" if recovery is None else f"{recovery:.1f}"]


def recent_scores(result: Result, window: int = 10) -> Floats:
    """[T] the metric over the last `window` rounds, mean over clients."""
    sums = np.cumsum(np.concatenate([[0.0], result.rounds["score"]]))
    rounds = np.arange(1, len(sums))
    first = np.maximum(rounds - window, 0)
    means: Floats = (sums[rounds] - sums[first]) / (rounds - first)
    return means


def phase_levels(result: Result) -> Floats:
    """[T] the metric of the best model of each phase over that phase, mean over clients."""
    edges = [0, *result.figures["changes"], result.config.rounds]
    return np.repeat(np.array(result.figures["phase_best"], dtype=np.float64), np.diff(edges))


def comparison_table(rows: Sequence[tuple[str, Result]], reference: Result) -> str:
    """One row per run, then the scores of a random model and of the best model in hindsight in `reference`."""
    metric = reference.metric
    cells = [
        [name, format_score(result.score[result.took_part], metric), format_regret(result), format_bound(result)]
        for name, result in rows
    ]
    for name, score in (
        ("a uniformly random model", reference.random_model),
        ("the best model in hindsight", reference.best_in_hindsight),
        ("the best model of each phase", reference.best_of_phases),
    ):
        if score is not None:
            cells.append([name, format_score(score[reference.took_part], metric), "", ""])
    header = ["", f"{metric}, mean ± std over clients", "average regret", "its bound"]
    if any(result.drifts for _, result in rows):
        header += DRIFT_HEADER
        drifts = [format_drift(result) for _, result in rows]
        cells = [[*cell, *drift] for cell, drift in zip_longest(cells, drifts, fillvalue=["", ""])]
    table = format_table(header, cells)
    if mixed_bounds([result for _, result in rows]):
        table += "\n(regret is in each run's own selection loss, bounded or raw)"
    return table


def notebook_html(result: Result) -> str:
    """A result in a notebook: the table, and the plot if matplotlib is installed."""
    picture = ""
    if result.hindsight and find_spec("matplotlib") is not None:
        buffer = io.StringIO()
        result.plot().savefig(buffer, format="svg")
        picture = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    return f"<pre>{html.escape(str(result))}</pre>{picture}"


def result_table(result: Result) -> str:
    """The table of one run."""
    table = comparison_table([(result.config.policy, result)], result)
    reason = result.figures.get("not_covered")
    lines = [f"bound not covered: {reason}"] if reason else []
    lines += result.figures.get("events", ())
    return "\n".join([table, *lines, *(f"warning: {line}" for line in result.figures.get("warnings", ()))])


def regret_curve(name: str, result: Result) -> Curve:
    """Average regret over rounds, its spread over clients, and its bound at the last round if covered."""
    columns = result.rounds
    rounds = np.arange(1, len(columns["regret"]) + 1)
    bound = result.figures["bound"]
    return Curve(
        name,
        columns["regret"] / rounds,
        columns["regret_10"] / rounds,
        columns["regret_90"] / rounds,
        None if bound is None else bound / len(rounds),
    )


def draw_regret(runs: Sequence[tuple[str, Result]], path: Path) -> None:
    """Write a chart of the clients' average regret over rounds, with its spread and its bound if covered."""
    draw_curves([("", [regret_curve(name, result) for name, result in runs])], [path], ylabel=REGRET_LABEL)
