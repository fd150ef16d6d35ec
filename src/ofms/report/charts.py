"""The charts of a report: vector graphics whose text and axes take the colour of the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ofms.core.typing import AnyArray, Floats
from ofms.drawing.charts import COLOURS, new_figure
from ofms.report.runs import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Drawn in this colour, replaced by the page's own.
_INK = "#010203"
_SHADES = "viridis"
_MOST_POINTS = 400


def regret_chart(runs: Sequence[FinishedRun]) -> str:
    """Average regret over rounds; a triangle marks the bound at the end where the theorems cover the run."""
    shown = [run for run in runs if run.summary["regret"] is not None]

    def draw(axes: Axes) -> None:
        for number, run in enumerate(shown):
            colour, rounds = _colour(number), _shown(run)
            quantiles = [run.lines[int(each) - 1]["regret_quantiles"] for each in rounds]
            low, _, high = (np.array(quantiles) / rounds[:, None]).T
            axes.plot(rounds, _shown(run, "regret") / rounds, color=colour, label=run.name)
            axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
            if run.summary["bound"] is not None:
                bound = run.summary["bound"] / len(run.lines)
                axes.plot(rounds[-1], bound, marker="v", color=colour, clip_on=False)
                axes.annotate(
                    f"bound {bound:.3f}", (rounds[-1], bound), xytext=(-8, 0), textcoords="offset points",
                    ha="right", va="center",
                )  # fmt: skip
        axes.set_ylabel("average regret (selection loss)")

    return _chart(draw, "regret", legend=True) if shown else ""


def metric_chart(runs: Sequence[FinishedRun]) -> str:
    """The metric so far, with one standard deviation over clients; and without fine-tuning, where it was measured."""
    factor, unit = scale(runs[0].metric)

    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            colour, rounds = _colour(number), _shown(run)
            mean, std = factor * _shown(run, "mean"), factor * _shown(run, "std")
            axes.plot(rounds, mean, color=colour, label=run.name)
            axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
            frozen = factor * _shown(run, "frozen")
            if np.isfinite(frozen).any():
                axes.plot(rounds, frozen, color=colour, linestyle="--", label=f"{run.name}, frozen dictionary")
        axes.set_ylabel(f"{runs[0].metric} so far ({unit})")

    return _chart(draw, "metric", legend=True)


def gain_chart(runs: Sequence[FinishedRun]) -> str:
    """What fine-tuning added to the same choices, and the groups of which one uploads."""
    shown = [run for run in runs if np.isfinite(run.over_rounds("frozen")).any()]

    def draw(axes: Axes) -> None:
        for number, run in enumerate(shown):
            factor, unit = scale(run.metric)
            sign = 1 if run.metric == "accuracy" else -1
            gained = sign * factor * (_shown(run, "mean") - _shown(run, "frozen"))
            axes.plot(_shown(run), gained, color=_colour(number), label=run.name)
            axes.set_ylabel(f"gain so far ({unit}; above 0 is better)")
        axes.axhline(0, color=_INK, linewidth=0.8)

    return _chart(draw, "gain", legend=len(shown) > 1) if shown else ""


def groups_chart(runs: Sequence[FinishedRun]) -> str:
    """α, the number of upload groups."""

    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            axes.plot(_shown(run), _shown(run, "groups"), color=_colour(number), label=run.name)
        axes.set_ylabel("upload groups α")
        axes.set_ylim(0, None)

    return _chart(draw, "groups", legend=len(runs) > 1)


def memory_chart(runs: Sequence[FinishedRun]) -> str:
    """What clients hold on average, against the budgets."""

    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            colour = _colour(number)
            axes.plot(_shown(run), _shown(run, "held") / 2**10, color=colour, label=f"{run.name}, held on average")
            for budget in np.unique(run.clients["budget"])[:5]:
                axes.axhline(budget / 2**10, color=colour, linestyle=":", linewidth=1.2)
        axes.plot([], [], color=_INK, linestyle=":", label="budgets")
        axes.set_ylabel("memory of a client (KiB)")
        axes.set_ylim(0, None)

    return _chart(draw, "memory", legend=True)


def bytes_chart(runs: Sequence[FinishedRun]) -> str:
    """Bytes down and up in each exchange, for a client."""

    def draw(axes: Axes) -> None:
        for number, run in enumerate(runs):
            for name, style in (("down", "-"), ("up", "--")):
                moved = run.over_rounds(name) / run.config.clients / 2**10
                starts = np.arange(0, len(moved), run.config.interval)
                starts = starts[:: -(-len(starts) // _MOST_POINTS)]
                axes.plot(starts + 1, moved[starts], style, color=_colour(number), label=f"{run.name}, {name}")
        axes.set_ylabel("moved in an exchange (KiB a client)")
        axes.set_ylim(0, None)

    return _chart(draw, "bytes", legend=True)


def shares_chart(run: FinishedRun) -> str:
    """Clients × models: how often a model was held, and how often it predicted."""
    figure = new_figure(10, 4.4)
    for place, (axes, (name, title)) in enumerate(
        zip(figure.subplots(1, 2), (("held_share", "held"), ("prediction_share", "chosen")), strict=True)
    ):
        picture = axes.imshow(run.clients[name], aspect="auto", cmap=_SHADES, vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"share of rounds {title}", fontsize=10)
        axes.set_xlabel("model")
        _whole_ticks(axes)
        if place == 0:
            axes.set_ylabel("client")
        _style(axes)
        bar = figure.colorbar(picture, ax=axes, fraction=0.05)
        _style(bar.ax)
        bar.outline.set_visible(False)
    return _svg(figure, "shares")


def weights_chart(run: FinishedRun, client: int) -> str:
    """One client's probabilities over models, exchange by exchange; dots where the model predicted."""
    probability: AnyArray = run.history["probability"][:, client].T
    figure = new_figure(10, 3.4, arranged=False)
    axes = figure.add_axes((0.06, 0.15, 0.84, 0.8))
    rounds = run.history["round"]
    extent = (float(rounds[0]) + 0.5, float(run.config.rounds) + 0.5, len(probability) - 0.5, -0.5)
    picture = axes.imshow(
        probability, aspect="auto", cmap=_SHADES, vmin=0, vmax=1, interpolation="nearest", extent=extent
    )
    chosen = run.history["prediction_weights"][:, client].argmax(axis=1)
    axes.plot(rounds + 1, chosen, ".", color="#D55E00", markersize=1.8, alpha=0.8, rasterized=True)
    axes.set_xlabel("round")
    axes.set_ylabel("model")
    _whole_ticks(axes)
    _style(axes)
    bar = figure.colorbar(picture, cax=figure.add_axes((0.915, 0.15, 0.015, 0.8)))
    bar.set_label("probability", color=_INK, fontsize=8)
    _style(bar.ax)
    bar.outline.set_visible(False)
    return _svg(figure, f"weights-{client}")


def scale(metric: str) -> tuple[float, str]:
    """How a metric is shown: its factor and unit."""
    return (100.0, "%") if metric == "accuracy" else (1000.0, "×10⁻³")


def _chart(draw: Callable[[Axes], None], name: str, *, legend: bool) -> str:
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    draw(axes)
    axes.set_xlabel("round")
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    _style(axes)
    if legend:
        axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
    return _svg(figure, name)


def _whole_ticks(axes: Axes) -> None:
    """Clients and models are counted: no fractions."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))


def _style(axes: Axes) -> None:
    axes.tick_params(colors=_INK, labelsize=8)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.texts):
        text.set_color(_INK)


def _svg(figure: object, name: str) -> str:
    """A figure as an element of a page: text stays text, ids differ from chart to chart."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})  # type: ignore[attr-defined]
    text = buffer.getvalue()
    return (
        text[text.index("<svg") :]
        .replace(_INK, "currentColor")
        .replace("<svg ", f'<svg role="img" data-chart="{name}" ', 1)
    )


def _shown(run: FinishedRun, name: str | None = None) -> Floats:
    """One figure of the lines, or the rounds' numbers, at no more points than a chart can show."""
    lines = len(run.lines)
    places = np.unique(np.linspace(0, lines - 1, min(lines, _MOST_POINTS)).astype(int))
    values = np.arange(1, lines + 1, dtype=np.float64) if name is None else run.over_rounds(name)
    shown: Floats = values[places]
    return shown


def _colour(number: int) -> str:
    # Black is the palette's last colour and cannot be seen on a dark page.
    return COLOURS[number % (len(COLOURS) - 1)]
