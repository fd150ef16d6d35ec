"""Charts of curves over rounds."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats
from ofms.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, for colour-blind readers, continued by the colours that are farthest from all before them in
# CIELAB, neither too light for a white page nor too dark for a black one.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6611FF", "#00DD00", "#FF00CC", "#FF0066"),
    *("#9977FF", "#776633", "#AACC55", "#FFAA88", "#AABBAA", "#11DD77", "#AA3333", "#227700", "#FF0022", "#336666"),
)
_LEGEND_COLUMNS = 4
# What files of these kinds have near their beginning.
_PICTURES = {".png": b"\x89PNG\r\n", ".svg": b"<!DOCTYPE svg", ".pdf": b"%PDF-"}
_BEGINNING = 256


@dataclass(frozen=True, eq=False)
class Curve:
    """[T] values over rounds; optionally [T] their spread over clients, and a bound on the last value.

    Attributes
    ----------
    marks
        Rounds that the chart marks with vertical lines.
    dashed
        Draw a level to compare with, not a measured curve.
    """

    label: str
    values: Floats
    low: Floats | None = None
    high: Floats | None = None
    bound: float | None = None
    marks: Sequence[int] = ()
    dashed: bool = False


def new_figure(width: float, height: float, *, arranged: bool = True) -> Figure:
    """An empty figure of a size in inches.

    With `arranged=False` the caller places the axes: matplotlib's automatic layout takes as long as drawing.
    """
    try:
        figure = _figure_class()
    except ImportError:
        raise InvalidInput("picture", "none", "it requires matplotlib: pip install 'ofms[experiments]'") from None
    return figure(figsize=(width, height), layout="constrained" if arranged else None)


def _figure_class() -> type[Figure]:
    """Matplotlib's class, also if the environment names a backend that does not exist: no window is opened."""
    backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    if backend:
        os.environ["MPLBACKEND"] = backend
        with suppress(ValueError):
            rcParams["backend"] = backend
    return Figure


def require_picture(path: Path) -> None:
    """Reject a name that is not one of a picture, and an existing file that writing one would destroy."""
    start = _PICTURES.get(path.suffix.lower())
    if start is None:
        raise InvalidInput("out", path, f"name a picture: its end must be one of {', '.join(_PICTURES)}")
    if not path.exists():
        return
    if not path.is_file():
        raise InvalidInput("out", path, "it is not a regular file; name another")
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if beginning and start not in beginning:
        raise InvalidInput("out", path, "it is a file of another kind; name another")


def draw_curves(panels: Sequence[tuple[str, Sequence[Curve]]], paths: Sequence[Path], *, ylabel: str) -> None:
    """Write `curves_figure` to files, each in the format of its suffix."""
    write_figure(curves_figure(panels, ylabel=ylabel), paths)


def write_figure(figure: Figure, paths: Sequence[Path]) -> None:
    """Write a figure to files, each in the format of its suffix."""
    import matplotlib

    # A fixed salt, so that the same figure yields the same file.
    with matplotlib.rc_context({"svg.hashsalt": "ofms"}):
        for path in paths:
            kind, content = path.suffix.lower().removeprefix("."), io.BytesIO()
            figure.savefig(content, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            write_whole(path, content.getvalue())


def curves_figure(panels: Sequence[tuple[str, Sequence[Curve]]], *, ylabel: str) -> Figure:
    """Curves over rounds, panels side by side; a triangle marks a bound on a curve's last value."""
    shared = _share_legend([curves for _, curves in panels])
    labels = list(dict.fromkeys(curve.label for _, curves in panels for curve in curves))
    colours = {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(labels)}
    entries = max((len(curves) for _, curves in panels), default=0)
    rows = -(-entries // _LEGEND_COLUMNS) if shared else entries + 2
    figure = new_figure(6.4 if len(panels) == 1 else 4.8 * len(panels), 3.4 + 0.22 * rows)
    for place, (axes, (title, curves)) in enumerate(
        zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
    ):
        for mark in sorted({mark for curve in curves for mark in curve.marks}):
            axes.axvline(mark, color="#888888", linestyle=":", linewidth=1)
        for curve in curves:
            colour = colours[curve.label]
            rounds = np.arange(1, len(curve.values) + 1)
            # The bound's value is in the legend: next to its mark it would cover curves, axes or other bounds.
            bounded = "" if curve.bound is None else f", bound {curve.bound:.3f}"
            style = "--" if curve.dashed else "-"
            axes.plot(rounds, curve.values, style, color=colour, label=curve.label + bounded)
            if curve.low is not None and curve.high is not None:
                axes.fill_between(rounds, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
            if curve.bound is not None:
                axes.plot(rounds[-1], curve.bound, marker="v", color=colour, clip_on=False)
        axes.set_title(title)
        axes.set_xlabel("round")
        if place == 0:
            axes.set_ylabel(ylabel)
        axes.set_xlim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if curves and not shared:
            # Below the axes: inside it would cover curves.
            axes.legend(frameon=False, title=_heading(curves), loc="upper center", bbox_to_anchor=(0.5, -0.16))
    if shared:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        columns = min(len(labels), _LEGEND_COLUMNS)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _share_legend(panels: Sequence[Sequence[Curve]]) -> bool:
    """Whether one legend below all panels suffices: the same labels in all, and nothing else to explain."""
    labels = {tuple(curve.label for curve in curves) for curves in panels}
    return len(panels) > 1 and len(labels) == 1 and not any(_heading(curves) for curves in panels)


def _heading(curves: Sequence[Curve]) -> str | None:
    """The meaning of bands and triangles, if any."""
    meanings = []
    if any(curve.low is not None for curve in curves):
        meanings.append("mean over clients; band: 10 to 90 % of them")
    if any(curve.bound is not None for curve in curves):
        meanings.append("triangle: bound on the last value")
    return "\n".join(meanings) or None
