"""The report page, also in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import ofms
from ofms.cli import _main
from ofms.core.errors import InvalidInput
from ofms.drawing.charts import COLOURS
from ofms.policies import MODULES
from ofms.report import svg
from ofms.report.charts import bytes_chart, gain_chart, memory_chart, metric_chart, regret_chart, run_colours
from ofms.report.heatmaps import shares_chart, weights_chart
from ofms.report.page import write_report
from ofms.reproduction.bench import ROWS
from tests.problems import image_problem, regression_problem


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs on the same stream: one whose regret has a bound, one of another policy."""
    folder = tmp_path_factory.mktemp("runs")
    dictionary, stream = regression_problem(clients=6, rounds=30)
    common: dict[str, Any] = {"models": dictionary, "stream": stream, "budget": "3", "bandwidth": "60%"}
    ofms.simulate(policy="ofms-ft", preset="theory", out=folder / "theory", **common)
    ofms.simulate(policy="mab", preset="theory", out=folder / "mab", **common)
    return [folder / "theory", folder / "mab"]


def test_the_page_is_complete_and_needs_no_network(runs: list[Path]) -> None:
    page = write_report(runs[:1]).read_text()
    assert page.startswith("<!DOCTYPE html>")
    for chart in ("metric", "regret", "gain", "groups", "memory", "bytes", "shares", "weights-0", "weights-5"):
        assert f'data-chart="{chart}"' in page
    assert "average regret" in page
    assert "ofms run config.toml" in page
    assert "budget = &#34;3&#34;" in page
    outside = re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page)
    assert not outside, "nothing is fetched"
    clips = re.findall(r'<clipPath id="([^"]+)"', page)
    assert clips
    assert len(set(clips)) == len(clips), "charts do not share their clip paths"


def test_several_runs_stand_side_by_side(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "both.html").read_text()
    assert "Runs side by side" in page
    assert "Best mean: " in page
    for name in ("ofms-ft", "mab"):
        assert f"<td>{name}</td>" in page


def test_a_mixture_reads_right(runs: list[Path], tmp_path: Path) -> None:
    dictionary, stream = regression_problem(clients=4, rounds=12)
    common: dict[str, Any] = {"models": dictionary, "stream": stream, "budget": "3", "bandwidth": "60%"}
    mixed = ofms.simulate(out=tmp_path / "mixed", **common)
    weights = mixed.history["prediction_weights"]
    assert (weights > 0).sum(axis=2).max() > 1
    page = write_report([tmp_path / "mixed"]).read_text()
    assert "preset" not in page.partition("<h2")[0], "no preset has settings for late hedging"
    assert "preset theory" in write_report(runs[:1]).read_text()
    assert "Missing bounds: late hedging&#39;s bound depends on the losses of the run." in page
    assert "weight in predictions" in page
    named = write_report([tmp_path / "mixed", runs[1]], tmp_path / "both.html", ["a mixture", "MAB"]).read_text()
    assert "<td>a mixture</td>" in named


def test_the_command_writes_the_page(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["report", str(runs[1])]) == 0
    assert str(runs[1] / "report.html") in capsys.readouterr().out
    assert _main(["report", str(tmp_path / "nothing")]) == 2
    assert "it is not a run's folder" in capsys.readouterr().err
    for name, message in (("summary.json", "it is not finished"), ("clients.npz", "it is damaged")):
        broken = tmp_path / name
        shutil.copytree(runs[0], broken)
        if name == "summary.json":
            (broken / name).unlink()
        else:
            (broken / name).write_bytes(b"PK damaged")
        assert _main(["report", str(broken)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


def test_runs_of_different_metrics_are_refused(runs: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)
    summary = other / "summary.json"
    summary.write_text(summary.read_text().replace('"mse"', '"accuracy"'))
    with pytest.raises(InvalidInput, match="accuracy and mse"):
        write_report([runs[0], other], tmp_path / "page.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_chromium(browser: Any, runs: list[Path], theme: str, width: int, tmp_path: Path) -> None:
    """It loads without errors and shows all charts, in both themes, on a wide and on a narrow screen."""
    path = write_report(runs[:1], tmp_path / "report.html")
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(path.as_uri())
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    charts = browser.find_elements("css selector", "svg[data-chart]")
    shown = [chart for chart in charts if chart.is_displayed()]
    assert len(shown) == 8
    assert all(chart.size["width"] > 0.7 * min(width, 400) and chart.size["height"] > 80 for chart in shown)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0, "nothing overflows to the right"

    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    ink = browser.execute_script("return getComputedStyle(document.querySelector('svg[data-chart] text')).fill")
    bright = [sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3 for colour in (background, ink)]
    assert (bright[0] > 200 and bright[1] < 80) if theme == "light" else (bright[0] < 60 and bright[1] > 180)

    browser.execute_script(
        "const select = document.querySelector('[data-weights] select');"
        "select.value = '2'; select.dispatchEvent(new Event('change'));"
    )
    weights = browser.find_elements("css selector", "svg[data-chart^='weights-']")
    assert [chart.is_displayed() for chart in weights] == [False, False, True, False, False, False]
    assert len(browser.get_screenshot_as_png()) > 10_000


def test_a_summary_without_figures_of_later_versions_becomes_a_page(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("frozen", "not_covered"):
        summary.pop(name)
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "down, per client and exchange" in write_report([folder], tmp_path / "page.html").read_text()


def test_only_a_page_is_replaced(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    summary = (runs[0] / "summary.json").read_bytes()
    for out, message in (
        (tmp_path / "pipe", "it is not a regular file"),
        (tmp_path, "it is a folder"),
        (runs[0] / "summary.json", "it is a file of another kind"),
    ):
        assert _main(["report", str(runs[0]), "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (runs[0] / "summary.json").read_bytes() == summary
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    (tmp_path / "page.html").touch()
    for _ in range(2):
        assert _main(["report", str(runs[0]), "--out", str(tmp_path / "page.html")]) == 0


def _lines(chart: str) -> set[str]:
    """The colours of the curves in a chart, without grid and axes."""
    return set(re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: 1\.5", chart))


def test_a_policy_has_one_colour_in_all_charts_and_no_other_policy_has_it() -> None:
    """Also in charts that leave runs out, as that of the gain of fine-tuning does."""
    dictionary, stream = regression_problem(clients=2, rounds=6)
    common: dict[str, Any] = {"models": dictionary, "stream": stream, "budget": "4", "bandwidth": "100%"}
    results = [ofms.simulate(policy=name, **common) for name in MODULES]
    again = ofms.simulate(policy="mab", loss_bound="raw", **common)
    colours = run_colours([*results, again])
    assert len(set(colours)) == len(MODULES) + 1
    assert run_colours([results[3], again]) == [colours[3], colours[2]], "the same on every page"
    gain = gain_chart(results)
    tuned = [number for number, result in enumerate(results) if result.figures["frozen"] is not None]
    assert 2 < len(tuned) < len(MODULES)
    assert _lines(gain) == {colours[number].lower() for number in tuned}
    assert _lines(bytes_chart(results)) == {colour.lower() for colour in colours[:-1]}


def test_colours_can_be_told_apart() -> None:
    """At least 25 apart in CIELAB, ten times a just noticeable difference; as many as a comparison has rows."""
    assert len(COLOURS) >= len(ROWS) >= len(MODULES)
    linear = np.array([[int(each[i : i + 2], 16) / 255 for i in (1, 3, 5)] for each in COLOURS])
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
    x, y, z = np.cbrt(linear @ to_xyz.T / [0.9505, 1.0, 1.0888]).T
    lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)
    apart = np.sqrt(((lab[:, None] - lab) ** 2).sum(axis=2))
    assert apart[~np.eye(len(lab), dtype=np.bool_)].min() > 25
    assert lab[:, 0].min() > 30, "visible on a dark page"
    assert lab[:, 0].max() < 80, "and on a light one"


def test_no_legend_covers_curves_and_accuracy_ends_at_100_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure, name: str) -> str:
        figures.append(figure)
        return name

    monkeypatch.setattr(svg, "to_svg", keep)
    dictionary, stream = image_problem(clients=3, rounds=9)
    right = ofms.simulate(models=dictionary, stream=stream, policy="b-fed-omft", budget="2", bandwidth="100%")
    right.rounds["mean"][:] = 1.0
    right.rounds["std"][:] = 0.2
    for number in (1, 3, 12):
        for chart in (metric_chart, regret_chart, memory_chart, bytes_chart):
            chart([replace(right, name=f"run {each}") for each in range(number)])
    for figure in figures:
        figure.draw_without_rendering()
        (axes,), (legend,) = figure.axes, figure.legends
        assert axes.get_legend() is None
        assert legend.get_window_extent().y1 <= axes.get_window_extent().y0
        assert legend.get_window_extent().x1 <= figure.bbox.x1, "the whole legend is on the page"
    assert [figure.axes[0].get_ylim()[1] for figure in figures[::4]] == [100.0] * 3


def test_charts_name_models_and_clients() -> None:
    dictionary, stream = regression_problem(clients=3, rounds=6)
    result = ofms.simulate(models=dictionary, stream=stream, budget="3", bandwidth="60%")
    named = replace(result, figures=result.figures | {"client_names": ["pump a", "pump b", "x" * 60]})
    for chart in (shares_chart(named), weights_chart(named, 1)):
        assert all(f">{model.name}<" in chart for model in dictionary.models)
    assert ">pump b<" in shares_chart(named)
    assert f">{'x' * 27}…<" in shares_chart(named)
    assert ">2<" in shares_chart(result), "clients without names have numbers"


def test_a_name_in_any_script_is_drawn_by_the_browser() -> None:
    """Without a warning about Matplotlib's own font, which lacks the characters."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], label="ポンプ 1")

    assert "ポンプ 1" in svg.line_chart(draw, "metric", legend=True)


def test_a_wide_table_scrolls_in_itself(browser: Any, runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "wide.html", ["a policy with a rather long name"] * 2)
    screen = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())
    width = "const table = document.querySelector('.scroll'); return table.scrollWidth - table.clientWidth"
    assert browser.execute_script(width) > 0
    place = (
        "const table = document.querySelector('.scroll'); table.scrollLeft = 300;"
        "return document.querySelector('tbody td').getBoundingClientRect().left"
    )
    assert browser.execute_script(place) < 100, "the names stay in sight"
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
