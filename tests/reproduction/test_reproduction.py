"""Cells are run once and stored; tables show them beside the paper's figures."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofms.cli import _main
from ofms.core.errors import InvalidInput
from ofms.drawing.tables import Table
from ofms.reproduction import cells
from ofms.reproduction.bench import POLICIES, ROWS, Bench, Section, Size, title_of_row
from ofms.reproduction.cells import Cell, CellStore
from ofms.reproduction.comparison import comparison
from ofms.reproduction.page import reproduce_targets
from ofms.reproduction.summaries import paper
from ofms.reproduction.targets import TARGETS
from ofms.runs.result import Result
from ofms.storage.locks import FolderLock
from tests.reproduction.dictionaries import write_dictionary

SMALL: dict[str, Any] = {"clients": 4, "rounds": 12, "budget": "3"}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_dictionary(tmp_path / "models", 64, 10, "classification")


def test_a_cell_is_run_once(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(**options: Any) -> CellStore:
        return CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False, **options)

    wanted = [Cell("digits", "ofms-ft", seed, SMALL) for seed in (0, 1)]
    assert store(run=False).results(wanted) == [], "nothing is run with run=False"
    first = store().results(wanted)
    assert [result.config.seed for result in first] == [0, 1]
    assert first[0].score.shape == (4,)
    assert first[0].mean == first[0].figures["mean"] == pytest.approx(np.mean(first[0].score))
    monkeypatch.setattr(cells, "simulate", lambda *rest, **more: pytest.fail("run again"))
    again = store().results(wanted)
    assert [result.figures for result in again] == [result.figures for result in first]

    other = write_dictionary(tmp_path / "other", 64, 10, "classification", seed=1)
    changed = CellStore(tmp_path / "cells", models={"digits": str(other)}, progress=False, run=False)
    assert changed.results(wanted) == [], "another dictionary makes another cell"
    assert store(run=False).results([Cell("digits", "ofms-ft", 0, SMALL | {"window": 3})]) == []
    path = next((tmp_path / "cells").iterdir())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="it is damaged"):
        store().results(wanted)


def test_show_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = ["--show", "--quick", "--column", "digits", "--out", str(tmp_path / "out")]
    for target in ("comparison", "all"):
        assert _main(["reproduce", target, *arguments]) == 0
    assert not (tmp_path / "cache" / "ofms").exists()
    assert not (tmp_path / "out").exists(), "--show writes nothing"
    assert _main(["reproduce", "all", "--no-run", *arguments[1:]]) == 0
    assert (tmp_path / "out" / "results.md").exists()
    assert not (tmp_path / "out" / "cells").exists()


def test_a_cell_that_another_process_runs_is_refused(models: Path, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
    cell = Cell("digits", "ofms-ft", 0, SMALL)
    folder = store.run_folder(cell)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("half of it")
    lock = FolderLock(folder)
    with pytest.raises(InvalidInput, match="another process is running this cell"):
        store.results([cell])
    assert (folder / "config.toml").read_text() == "half of it"
    lock.close()
    assert len(store.results([cell])) == 1, "a folder without a lock that cannot be resumed is run again"


def test_an_interrupted_cell_is_kept_until_it_can_be_resumed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file must not discard its checkpoint; a checkpoint that does not fit is discarded."""
    store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
    cell = Cell("digits", "ofms-ft", 0, SMALL)

    def simulate(*rest: object, resume: object = None, **more: object) -> None:
        raise InvalidInput(why, "here", "for a test")

    folder = store.run_folder(cell)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(store.config(cell).to_toml())
    with monkeypatch.context() as patch:
        patch.setattr(cells, "simulate", simulate)
        for why in ("file", "folder"):
            with pytest.raises(InvalidInput, match=f"{why} = here"):
                store.results([cell])
            assert (folder / "config.toml").exists()
        why = "run"
        with pytest.raises(InvalidInput, match="run = here"):
            store.results([cell])
        assert not folder.exists(), "its checkpoint does not fit"
    assert len(store.results([cell])) == 1


def test_what_a_kill_left_of_the_run_of_a_written_cell_is_removed(models: Path, tmp_path: Path) -> None:
    """The run is removed after the cell is written; one that is kept for a report stays."""
    given: dict[str, Any] = {"models": {"digits": str(models)}, "progress": False}
    store, cell = CellStore(tmp_path / "cells", **given), Cell("digits", "ofms-ft", 0, SMALL)
    (first,) = store.results([cell])
    kept = CellStore(tmp_path / "cells", **given, keep_runs=True).run_folder(cell)
    for folder in (store.run_folder(cell), kept):
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}")
    lock = FolderLock(store.run_folder(cell))
    store.results([cell])
    assert store.run_folder(cell).exists(), "another process uses it"
    lock.close()
    assert store.results([cell])[0].mean == first.mean
    assert not store.run_folder(cell).parent.exists()
    assert (kept / "summary.json").exists()


def test_other_data_make_another_cell(tmp_path: Path) -> None:
    models = write_dictionary(tmp_path / "models", 2, 1, "regression")
    (tmp_path / "own.toml").write_text(
        'summary = "pumps"\nbudget = "3"\nbandwidth = "50%"\nmodels = "models"\n'
        '[stream]\nfile = "pumps.csv"\ntask = "regression"\ntarget = "load"\nclient = "pump"\n'
    )
    assert models.exists()
    means = []
    for load in (0.1, 0.9):
        rows = [f"{pump},{step / 10},{step % 3},{load}" for pump in range(3) for step in range(8)]
        (tmp_path / "pumps.csv").write_text("\n".join(["pump,heat,speed,load", *rows]))
        store = CellStore(tmp_path / "cells", progress=False)
        means.append(store.results([Cell(str(tmp_path / "own.toml"))])[0].mean)
    assert means[0] != means[1]
    assert len(list((tmp_path / "cells").iterdir())) == 2


def test_a_cells_command_repeats_it(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed command can be pasted into a shell, with its brackets and parentheses."""
    store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
    given = SMALL | {"subset": [0, 2], "feedback": "all", "interval": 2, "learning_rate": "10/sqrt(T)"}
    result = store.results([Cell("digits", "non-fed-oms", 3, given)])[0]
    command = result.figures["command"].replace("--models DIR", shlex.join(["--models", str(models)]))
    shell = f"set -- {command}; printf '%s\\n' \"$@\""
    words = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words == shlex.split(command)
    assert words[:2] == ["ofms", "run"]
    assert _main([*words[1:], "--out", str(tmp_path / "run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["mean"] == pytest.approx(result.mean, rel=1e-6)
    assert printed["regret"] == pytest.approx(result.figures["regret"], rel=1e-6)
    run = Result.load(tmp_path / "run")
    assert run.config.settings == result.config.settings


def test_commands_of_earlier_cells_are_quoted(models: Path, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
    (result,) = store.results([Cell("digits", "ofms-ft", 0, SMALL | {"learning_rate": "10/sqrt(T)"})])
    assert "--set 'learning_rate=10/sqrt(T)'" in result.figures["command"]
    (path,) = (tmp_path / "cells").iterdir()
    path.write_text(path.read_text().replace("'learning_rate=10/sqrt(T)'", "learning_rate=10/sqrt(T)"))
    assert Result.load(path).figures["command"] == result.figures["command"]


def test_the_loopback_measures_processor_time(models: Path, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
    few, more = store.results([Cell("digits", "ofms-ft", 0, SMALL | {"budget": b}, True) for b in ("2", "6")])
    assert few.config.loopback
    assert few.figures["client_seconds"] > 0
    assert few.figures["most_bytes_held"] < more.figures["most_bytes_held"]


def test_compare_shows_all_policies(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    arguments = ["compare", "digits", "--models", str(models), "--seeds", "2", "--clients", "4", "--rounds", "12"]
    assert _main([*arguments, "--budget", "3", "--set", "window=3", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr().out
    for name in ROWS:
        assert title_of_row(name) in printed
    assert len(json.loads(printed.splitlines()[-1])["runs"]) == 2 * len(ROWS)
    page = (out / "compare-digits" / "report.html").read_text()
    assert all(f"<td>{title_of_row(name)}</td>" in page for name in ROWS), "runs are named by their rows"
    assert "average regret" in printed.splitlines()[1], "regret beside the metric"
    (table,) = [lines for lines in printed.split("\n\n") if lines.startswith("Seed by seed: digits, %")]
    for name in ROWS:
        (cells,) = [line.split() for line in table.splitlines() if line.startswith(f"{title_of_row(name)}  ")]
        mean, _, spread, *seeds = cells[-5:]
        first, second = map(float, seeds)
        assert float(mean) == pytest.approx((first + second) / 2, abs=0.011)
        assert float(spread) == pytest.approx(abs(first - second) / 2**0.5, abs=0.011)
        assert "".join(f"<td>{cell}</td>" for cell in (f"{mean} ± {spread}", *seeds)) in page, "on the page too"
    assert {"comparison.md", "comparison.tex", "comparison.json", "traffic.md", "seeds.md"} <= {
        path.name for path in (out / "compare-digits").iterdir()
    }
    shutil.rmtree(out / "compare-digits" / "runs")
    assert _main([*arguments, "--budget", "3", "--set", "window=3", "--out", str(out)]) == 0, "cells are enough"
    assert "warning: no report: name at least one run's folder" in capsys.readouterr().err
    assert _main([*arguments, "--seed", "1", "--policy", "mab", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr().out
    assert [run["seed"] for run in json.loads(printed.splitlines()[-1])["runs"]] == [1, 2]
    (reference,) = [line for line in printed.splitlines() if line.startswith("a uniformly random model (of MAB's run)")]
    assert 0 < float(reference.split()[-1]) < 100, "also without OFMS-FT"
    for wrong, message in (("seed=3", "seed is not a setting"), ("hindsight=false", "a cell includes regret")):
        assert _main([*arguments, "--set", wrong, "--policy", "mab", "--out", str(out / "new")]) == 2
        assert message in capsys.readouterr().err
    assert not list((out / "new").rglob("metrics.jsonl")), "refused before anything is run"
    assert _main([*arguments, "--set", "colour=3", "--out", str(out)]) == 2
    assert "colour = 3: none of" in capsys.readouterr().err


def test_a_frozen_row_stands_beside_its_policy(models: Path, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
    names = ("ofms-ft", "OFMS-FT, frozen", "late hedging, frozen")
    section = comparison(Bench(store, ["digits"], Size(seeds=1)), names, **SMALL, fine_tuning_rate=0.5)
    assert [row[0] for row in section.tables[0].rows[:3]] == ["OFMS-FT", "OFMS-FT, frozen", "late hedging, frozen"]
    data = section.tables[0].data
    assert [each.get("row") for each in data] == [None, *names[1:]]
    for each, rate in zip(data, ("0.5", "0", "0"), strict=True):
        assert f"fine_tuning_rate={rate}" in str(each["command"]).split()


def test_the_papers_figures_are_in_the_same_table(tmp_path: Path) -> None:
    models = write_dictionary(tmp_path / "models", 48, 1, "regression")
    store = CellStore(tmp_path / "cells", models={"wec-synthetic": str(models)}, progress=False)
    section = comparison(Bench(store, ["wec-synthetic"], Size(seeds=1)), ("mab", "ofms-ft"), clients=4, rounds=5)
    table = section.tables[0]
    assert table.header == ["", "WEC (synthetic), MSE ×10⁻³", "paper"]
    assert table.rows[0][2] == "36.96 ± 8.52"
    assert table.rows[1][2] == "7.09 ± 1.67"
    assert any("nothing measured" in note for note in table.notes), "synthetic data are named beside their figures"
    assert len(table.bold) == 1
    assert paper("budgets")["air"]["10"] == [7.38, 4.86]


def test_tables_name_the_number_of_seeds(models: Path, tmp_path: Path) -> None:
    def table(seeds: int, policies: tuple[str, ...], *, run: bool) -> Table:
        store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False, run=run)
        return comparison(Bench(store, ["digits"], Size(seeds=seeds)), policies, **SMALL).tables[0]

    table(2, ("mab",), run=True)
    assert table(5, ("mab",), run=False).notes == ["Seeds: digits 2."], (
        "the seeds that were run, not the requested ones"
    )
    table(1, ("non-fed-oms",), run=True)
    assert table(5, ("mab", "non-fed-oms"), run=False).notes == ["Seeds: digits 1 to 2."]
    assert table(5, ("rms-ft",), run=False).notes == ["Seeds: digits –."]


@pytest.mark.slow
def test_digits_have_no_column_of_the_paper(models: Path, tmp_path: Path) -> None:
    def digits(target: str = "digits", **asked: Any) -> Section:
        store = CellStore(tmp_path / "cells", models={"digits": str(models)}, progress=False)
        return TARGETS[target](Bench(store, size=Size(quick=True, seeds=1), **asked))

    section = digits(columns=["air"])
    assert [table.name for table in section.tables] == ["digits", "digits-traffic"]
    assert section.tables[0].header == ["", "digits, %"]
    assert [row[0] for row in section.tables[0].rows[: len(POLICIES)]] == list(POLICIES.values())
    assert {len(row) for row in section.tables[0].rows} == {2}
    assert digits(columns=["digits"], chosen=True) == section
    assert digits(columns=["air"], chosen=True).tables == (), "other columns were asked for"
    for target, header in (
        ("budgets", ["", "digits, %"]),
        ("run-time", ["", "digits, s"]),
        ("interval", ["", "digits, %", "down", "up", "α"]),
    ):
        table = digits(target, columns=["digits"], chosen=True).tables[0]
        assert table.header == header
        assert {len(row) for row in table.rows} == {len(header)}


def test_reproduce_writes_tables_figures_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = write_dictionary(tmp_path / "models", 48, 1, "regression")
    out = tmp_path / "results"
    arguments = ["--quick", "--seeds", "1", "--column", "wec-synthetic", "--models", f"wec-synthetic={models}"]
    for target in ("regret", "server"):
        assert _main(["reproduce", target, *arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "average regret" in printed
    names = {path.name for path in out.iterdir()}
    assert {
        f"{name}.{kind}" for name in ("regret", "regret-theory", "server-regret") for kind in ("png", "svg")
    } <= names
    assert (out / "regret.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "server-regret.json").read_text())

    ran = len(list((out / "cells").iterdir()))
    sections = reproduce_targets(
        "all",
        out=str(out),
        quick=True,
        seeds=1,
        columns=["wec-synthetic"],
        models={"wec-synthetic": str(models)},
        run=False,
        echo=lambda text: None,
    )
    assert [section.name for section in sections] == list(TARGETS)
    assert len(list((out / "cells").iterdir())) == ran, "nothing is run with run=False"
    page = (out / "results.md").read_text()
    assert "ofms run wec-synthetic --policy ofms-ft --seed 0" in page
    assert "| – |" in page, "a cell that was not run is a dash"
    assert str(tmp_path) not in page
    assert "A quick look" in page
    assert "server-regret-rounds100-" in page
    assert page.count("(regret.png)") == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".md"] == [], "all of it is in the folder"
    options: dict[str, Any] = {"quick": True, "columns": ["wec-synthetic"], "run": False, "echo": lambda text: None}
    reproduce_targets("all", out=str(out), page=str(tmp_path / "page.md"), **options)
    assert (tmp_path / "page.md").read_text().count(f"({out.name}/regret.png)") == 1


def test_quick_figures_are_marked(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--column", "digits", "--models", f"digits={models}", "--seeds", "1", "--out", str(tmp_path / "out")]
    assert _main(["reproduce", "budgets", "--quick", *arguments]) == 0
    assert "== Memory (quick look) ==" in capsys.readouterr().out
    assert (tmp_path / "out" / "budgets.md").read_text().startswith("Quick look: ")
    assert "Quick look" in (tmp_path / "out" / "budgets.tex").read_text()
    figures = json.loads((tmp_path / "out" / "budgets.json").read_text())
    assert figures
    assert all(row["quick"] for row in figures)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert _main(["reproduce", "budgets", "--show", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "quick" not in printed.lower()
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "everything"], "target = everything: use one of comparison"),
        (["reproduce", "budgets", "--column", "moon"], "experiment = moon"),
        (["reproduce", "budgets", "--models", "air"], "'air' is not EXPERIMENT=DIR"),
        (["compare", "moon"], "experiment = moon"),
        (["compare", "digits", "--seeds", "0"], "--seeds"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_tables_in_latex_escape_special_characters() -> None:
    rows = [["a", "7.43 ± 4.91"], ["b", "–"], ["c", "12 KiB"]]
    table = Table("t", "50 % of A & B", ["x_1", "y"], rows, frozenset({(0, 1), (2, 1)}), notes=["by `ofms run_it`"])
    text = table.latex()
    assert r"50 \% of A \& B" in text
    assert r"a & $\mathbf{7.43 \pm 4.91}$ \\" in text
    assert r"c & \textbf{12 KiB} \\" in text
    assert "\\par\\smallskip by \\texttt{ofms run\\_it}\n\\end{table}" in text
    assert r"b & -- \\" in text
