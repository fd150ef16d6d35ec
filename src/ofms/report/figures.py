"""Pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.simulator.result import Result

# Okabe and Ito's palette: told apart by colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_regret(runs: Sequence[tuple[str, Result]], path: Path) -> None:
    """The average regret of clients over rounds, with its spread, and the bound where it is covered."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput("picture", path.name, "it needs matplotlib: pip install 'ofms[experiments]'") from None
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for (name, result), colour in zip(runs, _COLOURS, strict=False):
        rounds = np.arange(1, len(result.lines) + 1)
        low, _, high = (np.array([line["regret_quantiles"] for line in result.lines]) / rounds[:, None]).T
        axes.plot(rounds, result.over_rounds("regret") / rounds, color=colour, label=name)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        if result.bound is not None:
            bound = float(result.bound.mean()) / len(rounds)
            axes.plot(rounds[-1], bound, marker="v", color=colour, clip_on=False)
            axes.annotate(
                f"bound at T = {len(rounds)}: {bound:.3f}",
                (rounds[-1], bound),
                color=colour,
                xytext=(-8, 0),
                textcoords="offset points",
                ha="right",
                va="center",
            )
    axes.set_xlabel("round")
    axes.set_ylabel("average regret (selection loss)")
    axes.set_xlim(0, None)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, title="mean over clients; band: 10 to 90 % of them", loc="upper right")
    figure.savefig(path, dpi=160)
