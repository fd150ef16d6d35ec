"""Charts as SVG elements of a page; text and axes inherit the page's colour."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from ofms.drawing.charts import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholder colour, replaced by the page's own.
INK = "#010203"
# Entries of a legend inside of a chart; more are below it.
_MOST_INSIDE = 10


def line_chart(draw: Callable[[Axes], None], name: str, *, legend: bool) -> str:
    """A chart over rounds, drawn by a function of its axes."""
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    draw(axes)
    axes.set_xlabel("round")
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    set_ink(axes)
    entries = len(axes.get_legend_handles_labels()[0])
    if legend and entries > _MOST_INSIDE:
        figure.set_figheight(figure.get_figheight() + 0.18 * -(-entries // 2))
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8, labelcolor=INK)
    elif legend:
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)
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
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return (
        text[text.index("<svg") :]
        .replace(INK, "currentColor")
        .replace("<svg ", f'<svg role="img" data-chart="{name}" ', 1)
    )


def colour(number: int) -> str:
    """The colour of a run by its number."""
    # The palette's last colour is black, which is invisible on a dark page.
    again, place = divmod(number, len(COLOURS) - 1)
    parts = (int(COLOURS[place][first : first + 2], 16) for first in (1, 3, 5))
    # When the colours are used up, they are mixed with grey.
    share = 0.5 if again % 2 else 0.0
    return "#" + "".join(f"{round((1 - share) * part + share * 128):02X}" for part in parts)
