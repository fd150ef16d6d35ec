"""Heat maps of a report: clients by models, and one client's expected weights over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ofms.core.typing import AnyArray
from ofms.drawing.charts import new_figure
from ofms.report.svg import INK, set_ink, to_svg
from ofms.runs.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Rows or columns that are all named; of more, some are.
_MOST_NAMES = 40
_LONGEST_NAME = 28
_SHADES: dict[str, Any] = {"aspect": "auto", "cmap": "viridis", "vmin": 0, "vmax": 1, "interpolation": "nearest"}


def shares_chart(run: Result) -> str:
    """Clients × models: the share of rounds in which a model was held, and its mean weight in predictions."""
    models, clients = _model_names(run), _client_names(run)
    figure = new_figure(10, max(4.4, 1.6 + 0.13 * min(len(clients), _MOST_NAMES)) + 0.05 * max(map(len, models)))
    shares = (("held_share", "share of rounds held"), ("prediction_share", "mean weight in predictions"))
    for place, (axes, (name, title)) in enumerate(zip(figure.subplots(1, 2), shares, strict=True)):
        picture = axes.imshow(run.clients[name], **_SHADES)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("model")
        _name_ticks(axes.xaxis, models, rotation=90)
        _name_ticks(axes.yaxis, clients)
        if place == 0:
            axes.set_ylabel("client")
        set_ink(axes)
        _small(axes)
        bar = figure.colorbar(picture, ax=axes, fraction=0.05)
        set_ink(bar.ax)
        bar.outline.set_visible(False)
    return to_svg(figure, "shares")


def weights_chart(run: Result, client: int) -> str:
    """One client's expected weights of models by exchange; a dot marks the model of most weight in predictions."""
    probability: AnyArray = run.history["probability"][:, client].T
    models = _model_names(run)
    figure = new_figure(10, max(3.4, 0.8 + 0.14 * min(len(models), _MOST_NAMES)), arranged=False)
    left = 0.045 + 0.0062 * max(map(len, models))
    axes = figure.add_axes((left, 0.15, 0.9 - left, 0.8))
    rounds = run.history["round"]
    # Of a long run, only every second, fourth, … exchange is kept.
    apart = rounds[1] - rounds[0] if len(rounds) > 1 else run.config.rounds
    extent = (float(rounds[0]) + 0.5, float(rounds[-1] + apart) + 0.5, len(probability) - 0.5, -0.5)
    picture = axes.imshow(probability, extent=extent, **_SHADES)
    chosen = run.history["prediction_weights"][:, client].argmax(axis=1)
    axes.plot(rounds + 1, chosen, ".", color="#D55E00", markersize=1.8, alpha=0.8, rasterized=True)
    axes.set_xlabel("round")
    axes.set_ylabel("model")
    _name_ticks(axes.yaxis, models)
    set_ink(axes)
    _small(axes)
    bar = figure.colorbar(picture, cax=figure.add_axes((0.915, 0.15, 0.015, 0.8)))
    bar.set_label("expected weight", color=INK, fontsize=8)
    set_ink(bar.ax)
    bar.outline.set_visible(False)
    return to_svg(figure, f"weights-{client}")


def _model_names(run: Result) -> list[str]:
    return [_short(name) for name in run.figures["models"]]


def _client_names(run: Result) -> list[str]:
    """The clients' names, or their numbers if they have none."""
    names = run.figures.get("client_names") or range(len(run.score))
    return [_short(str(name)) for name in names]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _name_ticks(axis: Axis, names: Sequence[str], rotation: float = 0) -> None:
    """Name the rows or columns, some of them if there are many."""
    step = -(-len(names) // _MOST_NAMES)
    axis.set_ticks(range(0, len(names), step), labels=names[::step], rotation=rotation)


def _small(axes: Axes) -> None:
    axes.tick_params(labelsize=7)
