"""Charts as SVG elements of a page; text and axes inherit the page's colour."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ofms.drawing.charts import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholder colour, replaced by the page's own.
INK = "#010203"
# Height of a row of a legend, in inches.
_ROW = 0.19
# Characters of a label beside which there is room for another column.
_LONGEST_IN_A_COLUMN = 42


def line_chart(draw: Callable[[Axes], None], name: str, *, legend: bool, most: float | None = None) -> str:
    """A chart over rounds, drawn by a function of its axes, with its legend below; `most` is the largest value."""
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    draw(axes)
    if most is not None:
        axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(most, axes.get_ylim()[1]))
    axes.set_xlabel("round")
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    set_ink(axes)
    if legend:
        labels = axes.get_legend_handles_labels()[1]
        columns = 2 if max(map(len, labels)) <= _LONGEST_IN_A_COLUMN else 1
        figure.set_figheight(figure.get_figheight() + _ROW * -(-len(labels) // columns))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, labelcolor=INK)
    return to_svg(figure, name)


def set_ink(axes: Axes) -> None:
    """Draw ticks, spines and text of axes in the page's colour."""
    axes.tick_params(colors=INK, labelsize=8)
    for spine in axes.spines.values():
        spine.set_color(INK)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.texts):
        text.set_color(INK)


def to_svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element: text stays text, and ids differ from chart to chart."""
    import matplotlib

    buffer = io.StringIO()
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # The browser draws the text, with fonts that have these characters.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return (
        text[text.index("<svg") :]
        .replace(INK, "currentColor")
        .replace("<svg ", f'<svg role="img" data-chart="{name}" ', 1)
    )
