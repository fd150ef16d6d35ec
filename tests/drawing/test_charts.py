"""Legends of charts, and files that do not depend on the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ofms.drawing.charts import Curve, curves_figure, draw_curves

VALUES = 1 / np.arange(1.0, 51.0)


def test_bounds_and_bands_are_explained_in_the_legend() -> None:
    plain, banded = Curve("plain", VALUES), Curve("banded", VALUES, VALUES / 2, 2 * VALUES)
    bounded = Curve("short", VALUES[:5], bound=0.9)
    figure = curves_figure([("one", [plain]), ("both", [banded, bounded])], ylabel="regret")
    one, both = figure.axes
    legends = [axes.get_legend() for axes in (one, both)]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends if legend] == [
        ["plain"],
        ["banded", "short, bound 0.900"],
    ]
    headings = [legend.get_title().get_text() for legend in legends if legend]
    assert headings == ["", "mean over clients; band: 10 to 90 % of them\ntriangle: bound on the last value"]
    marks = [line for line in both.lines if line.get_marker() == "v"]
    assert [(line.get_xdata(), line.get_ydata()) for line in marks] == [([5], [0.9])]
    assert not both.texts, "nothing is written on curves and axes"


def test_the_same_curves_give_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.svg", "b.svg", "c.png")]
    for path in paths:
        draw_curves([("", [Curve("plain", VALUES)])], [path], ylabel="regret")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg", "c.png"]
