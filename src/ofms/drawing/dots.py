"""Charts of values with their spread, one line per label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ofms.drawing.charts import COLOURS, new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Dot:
    """A value and its spread; None for a value that is not known."""

    label: str
    value: float | None
    spread: float = 0.0


@dataclass(frozen=True)
class DotPanel:
    """Values of one dataset, from top to bottom; `line` marks a value to compare with."""

    title: str
    xlabel: str
    dots: Sequence[Dot]
    line: float | None = None


def draw_dots(panels: Sequence[DotPanel], paths: Sequence[Path]) -> None:
    """Write `dots_figure` to files, each in the format of its suffix."""
    write_figure(dots_figure(panels), paths)


def dots_figure(panels: Sequence[DotPanel]) -> Figure:
    """Dots with bars of their spread, panels side by side; all panels have the same labels, in the same order."""
    labels = [dot.label for dot in panels[0].dots]
    figure = new_figure(2.6 + 2.8 * len(panels), 1.2 + 0.32 * len(labels))
    for axes, panel in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        if panel.line is not None:
            axes.axvline(panel.line, color="#888888", linestyle=":", linewidth=1)
        for place, dot in enumerate(panel.dots):
            if dot.value is not None:
                axes.errorbar(dot.value, place, xerr=dot.spread or None, fmt="o", color=COLOURS[0], capsize=2)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.xlabel)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
    return figure
