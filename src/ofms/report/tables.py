"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ofms.core.typing import Floats
from ofms.simulator.result import Result


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first to the left, the others to the right.

    >>> print(format_table(["model", "bytes"], [["small", "12"], ["large", "3,456"]]))
    model  bytes
    -----  -----
    small     12
    large  3,456
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


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
    return "–" if result.regret is None else f"{result.regret.mean() / result.config.rounds:.4f}"


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
