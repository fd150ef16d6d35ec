"""Heat maps of a report: clients by models, and one client's expected weights over rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ofms.core.typing import AnyArray
from ofms.drawing.charts import new_figure
from ofms.report.svg import INK, set_ink, to_svg
from ofms.runs.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHADES: dict[str, Any] = {"aspect": "auto", "cmap": "viridis", "vmin": 0, "vmax": 1, "interpolation": "nearest"}


def shares_chart(run: Result) -> str:
    """Clients × models: the share of rounds in which a model was held, and its mean weight in predictions."""
    figure = new_figure(10, 4.4)
    shares = (("held_share", "share of rounds held"), ("prediction_share", "mean weight in predictions"))
    for place, (axes, (name, title)) in enumerate(zip(figure.subplots(1, 2), shares, strict=True)):
        picture = axes.imshow(run.clients[name], **_SHADES)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("model")
        _integer_ticks(axes)
        if place == 0:
            axes.set_ylabel("client")
        set_ink(axes)
        bar = figure.colorbar(picture, ax=axes, fraction=0.05)
        set_ink(bar.ax)
        bar.outline.set_visible(False)
    return to_svg(figure, "shares")


def weights_chart(run: Result, client: int) -> str:
    """One client's expected weights of models by exchange; a dot marks the model of most weight in predictions."""
    probability: AnyArray = run.history["probability"][:, client].T
    figure = new_figure(10, 3.4, arranged=False)
    axes = figure.add_axes((0.06, 0.15, 0.84, 0.8))
    rounds = run.history["round"]
    extent = (float(rounds[0]) + 0.5, float(run.config.rounds) + 0.5, len(probability) - 0.5, -0.5)
    picture = axes.imshow(probability, extent=extent, **_SHADES)
    chosen = run.history["prediction_weights"][:, client].argmax(axis=1)
    axes.plot(rounds + 1, chosen, ".", color="#D55E00", markersize=1.8, alpha=0.8, rasterized=True)
    axes.set_xlabel("round")
    axes.set_ylabel("model")
    _integer_ticks(axes)
    set_ink(axes)
    bar = figure.colorbar(picture, cax=figure.add_axes((0.915, 0.15, 0.015, 0.8)))
    bar.set_label("expected weight", color=INK, fontsize=8)
    set_ink(bar.ax)
    bar.outline.set_visible(False)
    return to_svg(figure, f"weights-{client}")


def _integer_ticks(axes: Axes) -> None:
    """Number clients and models by integers."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
