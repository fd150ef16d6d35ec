"""Charts of a report over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING

import numpy as np

from ofms.core.typing import AnyArray
from ofms.drawing.charts import COLOURS
from ofms.policies import MODULES
from ofms.report.svg import INK, line_chart
from ofms.runs.formatting import REGRET_LABEL, phase_levels, recent_scores, scale
from ofms.runs.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 400
# Exchanges whose bytes are averaged.
_AVERAGED = 12
# Runs whose spread over clients is shown; those of more runs would cover each other.
MOST_BANDS = 4


def run_colours(runs: Sequence[Result]) -> list[str]:
    """The colour of each run: in all charts of all pages that of its policy; further runs take what is left."""
    by_policy = dict(zip(MODULES, COLOURS, strict=False))
    # Colours of policies that are not on the page come last; where all are taken, they are used again.
    absent = [colour for policy, colour in by_policy.items() if policy not in {run.config.policy for run in runs}]
    spare = chain(COLOURS[len(by_policy) :], absent, cycle(COLOURS))
    return [by_policy.pop(run.config.policy, "") or next(spare) for run in runs]


def _coloured(runs: Sequence[Result]) -> list[tuple[Result, str]]:
    return list(zip(runs, run_colours(runs), strict=True))


def regret_chart(runs: Sequence[Result]) -> str:
    """Average regret over rounds; a triangle marks the bound at the last round if the theorems cover the run."""
    shown = [(run, colour) for run, colour in _coloured(runs) if run.hindsight]

    def draw(axes: Axes) -> None:
        for run, colour in shown:
            rounds = _sampled(run, "round")
            low, mean, high = (_sampled(run, name) / rounds for name in ("regret_10", "regret", "regret_90"))
            bound = None if run.figures["bound"] is None else run.figures["bound"] / run.config.rounds
            axes.plot(rounds, mean, color=colour, label=run.name + ("" if bound is None else f", bound {bound:.3f}"))
            if len(shown) <= MOST_BANDS:
                axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
            if bound is not None:
                axes.plot(rounds[-1], bound, marker="v", color=colour, clip_on=False)
        axes.set_ylabel(REGRET_LABEL)

    return line_chart(draw, "regret", legend=True) if shown else ""


def metric_chart(runs: Sequence[Result]) -> str:
    """Running mean of the metric, one standard deviation over clients, and the metric without fine-tuning."""
    factor, unit = scale(runs[0].metric)

    def draw(axes: Axes) -> None:
        for run, colour in _coloured(runs):
            rounds, mean, std = _sampled(run, "round"), factor * _sampled(run, "mean"), factor * _sampled(run, "std")
            axes.plot(rounds, mean, color=colour, label=run.name)
            low, high = np.maximum(mean - std, 0.0), mean + std
            high = np.minimum(high, factor) if run.metric == "accuracy" else high
            if len(runs) <= MOST_BANDS:
                axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
            if _has_frozen(run):
                axes.plot(rounds, factor * _sampled(run, "frozen"), color=colour, linestyle="--")
        if any(_has_frozen(run) for run in runs):
            axes.plot([], [], color=INK, linestyle="--", label="same choices, frozen dictionary")
        axes.set_ylabel(f"{runs[0].metric} so far ({unit})")

    return line_chart(draw, "metric", legend=True, most=_most(runs))


def drift_chart(runs: Sequence[Result]) -> str:
    """The metric over the last rounds, the changes, and the best model of each phase of the first run."""
    shown = [(run, colour) for run, colour in _coloured(runs) if run.drifts]

    def draw(axes: Axes) -> None:
        first = shown[0][0]
        factor, unit = scale(first.metric)
        for change in sorted({change for run, _ in shown for change in run.figures["changes"]}):
            axes.axvline(change + 1, color=INK, linestyle=":", linewidth=1)
        levels = factor * phase_levels(first)
        axes.plot(first.rounds["round"], levels, "--", color=INK, linewidth=1, label="best model of each phase")
        for run, colour in shown:
            axes.plot(run.rounds["round"], factor * recent_scores(run), color=colour, label=run.name)
        axes.set_ylabel(f"{first.metric}, last ten rounds ({unit})")

    return line_chart(draw, "drift", legend=True, most=_most(runs)) if shown else ""


def gain_chart(runs: Sequence[Result]) -> str:
    """Gain of fine-tuning over the same choices with a frozen dictionary."""
    shown = [(run, colour) for run, colour in _coloured(runs) if _has_frozen(run)]

    def draw(axes: Axes) -> None:
        for run, colour in shown:
            factor, unit = scale(run.metric)
            sign = 1 if run.metric == "accuracy" else -1
            gain = sign * factor * (_sampled(run, "mean") - _sampled(run, "frozen"))
            axes.plot(_sampled(run, "round"), gain, color=colour, label=run.name)
            axes.set_ylabel(f"gain so far ({unit}; above 0 is better)")
        axes.axhline(0, color=INK, linewidth=0.8)

    return line_chart(draw, "gain", legend=len(shown) > 1) if shown else ""


def groups_chart(runs: Sequence[Result]) -> str:
    """α, the number of upload groups."""

    def draw(axes: Axes) -> None:
        for run, colour in _coloured(runs):
            axes.plot(_sampled(run, "round"), _sampled(run, "groups"), color=colour, label=run.name)
        axes.set_ylabel("upload groups α")
        axes.set_ylim(0, None)

    return line_chart(draw, "groups", legend=len(runs) > 1)


def memory_chart(runs: Sequence[Result]) -> str:
    """Mean bytes held by a client, and the budgets."""

    def draw(axes: Axes) -> None:
        for run, colour in _coloured(runs):
            held = _sampled(run, "held") / 2**10
            axes.plot(_sampled(run, "round"), held, color=colour, label=run.name)
        for budget in sorted({int(budget) for run in runs for budget in np.unique(run.clients["budget"])[:5]}):
            axes.axhline(budget / 2**10, color=INK, linestyle=":", linewidth=1.2)
        axes.plot([], [], color=INK, linestyle=":", label="budgets")
        axes.set_ylabel("held by a client on average (KiB)")
        axes.set_ylim(0, None)

    return line_chart(draw, "memory", legend=True)


def bytes_chart(runs: Sequence[Result]) -> str:
    """Bytes per client and exchange, down and up: means over some exchanges, because not all of them fine-tune."""

    def draw(axes: Axes) -> None:
        for run, colour in _coloured(runs):
            for name, style in (("down", "-"), ("up", "--")):
                moved = run.rounds[name][:: run.config.interval] / run.config.clients / 2**10
                sums = np.cumsum(np.concatenate([[0.0], moved]))
                stops = np.arange(1, len(sums), -(-len(moved) // _MOST_POINTS))
                firsts = np.maximum(stops - _AVERAGED, 0)
                means = (sums[stops] - sums[firsts]) / (stops - firsts)
                rounds = (stops - 1) * run.config.interval + 1
                axes.plot(rounds, means, style, color=colour, label=run.name if name == "down" else None)
        for name, style in (("down", "-"), ("up", "--")):
            axes.plot([], [], style, color=INK, label=name)
        axes.set_ylabel(f"KiB per client and exchange, mean of {_AVERAGED}")
        axes.set_ylim(0, None)

    return line_chart(draw, "bytes", legend=True)


def _most(runs: Sequence[Result]) -> float | None:
    """The largest value of the metric in its unit, if it has one."""
    return scale(runs[0].metric)[0] if runs[0].metric == "accuracy" else None


def _has_frozen(run: Result) -> bool:
    """Whether the same choices were also measured on the frozen dictionary."""
    return "frozen" in run.rounds and bool(np.isfinite(run.rounds["frozen"]).any())


def _sampled(run: Result, name: str) -> AnyArray:
    """A column, sampled at as many rounds as a chart can show."""
    values = run.rounds[name]
    sampled: AnyArray = values[np.unique(np.linspace(0, len(values) - 1, min(len(values), _MOST_POINTS)).astype(int))]
    return sampled
