"""A finished run: written, loaded, printed."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import pytest

import ofms
from ofms.runs.folder import resume_command
from ofms.runs.result import Result
from tests.problems import regression_problem


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run whose regret has a bound, with fine-tuning, in a folder."""
    dictionary, stream = regression_problem(clients=6, rounds=20)
    folder = tmp_path_factory.mktemp("runs") / "run"
    options: dict[str, Any] = {"budget": "3", "bandwidth": "60%", "interval": 4, "fine_tuning_rate": 0.01}
    return ofms.simulate(policy="ofms-ft", models=dictionary, stream=stream, preset="theory", out=folder, **options)


def assert_same(one: Result, other: Result) -> None:
    assert one.config == other.config
    assert one.figures == other.figures
    for name in ("clients", "rounds", "history"):
        arrays, others = getattr(one, name), getattr(other, name)
        assert arrays.keys() == others.keys()
        for key in arrays:
            np.testing.assert_array_equal(arrays[key], others[key], err_msg=key)
            assert arrays[key].dtype == others[key].dtype


def test_a_loaded_run_equals_the_written_one(written: Result, tmp_path: Path) -> None:
    assert written.folder is not None
    loaded = ofms.load(written.folder)
    assert_same(loaded, written)
    assert loaded.folder == written.folder
    assert loaded.name == "run"
    assert str(loaded) == str(written)
    assert loaded.table() in str(loaded)
    assert loaded.bound is not None
    assert loaded.bound.mean() == loaded.figures["bound"]
    assert loaded.regret().mean() == loaded.figures["regret"]
    assert len(loaded.plot().axes) == 1
    assert list(loaded.to_pandas("rounds").index) == list(range(1, 21))
    again = Result.load(loaded.save(tmp_path / "copy"))
    assert_same(again, written)
    assert json.loads((tmp_path / "copy" / "summary.json").read_text())["format"] == "ofms-run/2"


def earlier_format(run: Path, folder: Path) -> Path:
    """The same run as ofms 0.1 wrote it: no format, other names of arrays, no bounds by client."""
    shutil.copytree(run, folder)
    summary = json.loads((run / "summary.json").read_text())
    for key in ("format", "groups", "client_seconds"):
        del summary[key]
    (folder / "summary.json").write_text(json.dumps(summary))
    renamed = {"prediction_share": "vote_share", "prediction_weights": "vote"}
    for name in ("clients.npz", "history.npz"):
        with np.load(run / name) as arrays:
            kept = {renamed.get(key, key): arrays[key] for key in arrays if key != "bound"}
        np.savez_compressed(folder / name, **kept)
    return folder


def test_a_run_of_the_earlier_format_is_read(written: Result, tmp_path: Path) -> None:
    from ofms.report.page import write_report

    assert written.folder is not None
    folder = earlier_format(written.folder, tmp_path / "earlier")
    loaded = ofms.load(folder)
    assert loaded.figures == written.figures
    assert loaded.clients.keys() == written.clients.keys() - {"bound"}
    assert loaded.history.keys() == written.history.keys()
    assert str(loaded) == str(written)
    assert 'data-chart="weights-0"' in write_report([folder]).read_text()


def test_other_formats_are_refused_in_one_line(written: Result, tmp_path: Path) -> None:
    assert written.folder is not None
    folder = tmp_path / "later"
    shutil.copytree(written.folder, folder)
    summary = folder / "summary.json"
    text = summary.read_text()
    summary.write_text(text.replace("ofms-run/2", "ofms-run/9"))
    with pytest.raises(ofms.InvalidInput, match="its format is ofms-run/9; this version reads up to ofms-run/2"):
        ofms.load(folder)
    record = json.loads(text)
    del record["metric"]
    summary.write_text(json.dumps(record))
    with pytest.raises(ofms.InvalidInput, match="it is damaged \\(metric is missing\\)"):
        ofms.load(folder)
    summary.write_text(text)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(ofms.InvalidInput, match="it is damaged"):
        ofms.load(folder)


def test_loading_an_unfinished_run_prints_how_to_resume_it(written: Result, tmp_path: Path) -> None:
    assert written.folder is not None
    folder = tmp_path / "my run"
    shutil.copytree(written.folder, folder)
    (folder / "summary.json").unlink()
    with pytest.raises(ofms.InvalidInput, match="it is not finished") as refusal:
        ofms.load(folder)
    printed = refusal.value.remedy.partition("resume it with: ")[2]
    assert shlex.split(printed) == ["ofms", "run", "--resume", str(folder)]
    assert printed == resume_command(folder)
    with pytest.raises(ofms.InvalidInput, match="it is not a run's folder"):
        ofms.load(tmp_path / "nothing")


def test_a_cell_is_a_result_with_fewer_arrays(written: Result, tmp_path: Path) -> None:
    from ofms.report.page import write_report
    from ofms.runs.cell_file import write_cell

    path = tmp_path / "cell.json"
    config = msgspec.structs.replace(written.config, models=None)
    write_cell(written, path, config=config, command="ofms run x")
    cell = ofms.load(path)
    assert cell.config == config
    assert cell.mean == pytest.approx(written.mean, rel=1e-6)
    for name in ("bound", "best_in_hindsight", "random_model", "bytes_up", "groups", "revision", "not_covered"):
        assert cell.figures[name] == written.figures[name], name
    assert cell.regret() == pytest.approx(written.regret(), rel=1e-6)
    assert cell.rounds["regret_90"] == pytest.approx(written.rounds["regret_90"], rel=1e-4)
    with pytest.raises(ofms.InvalidInput, match="a cell stores only"):
        cell.save(tmp_path / "run")
    with pytest.raises(ofms.InvalidInput, match="name a run's folder"):
        write_report([path], tmp_path / "page.html")


def test_a_file_of_another_kind_is_not_called_damaged(written: Result, tmp_path: Path) -> None:
    assert written.folder is not None
    (tmp_path / "notes.md").write_text("# Notes\n")
    for path in (written.folder / "summary.json", tmp_path / "notes.md"):
        with pytest.raises(ofms.InvalidInput, match="neither a run's folder nor a cell") as error:
            ofms.load(path)
        assert "remove" not in str(error.value)


def test_short_descriptions() -> None:
    dictionary, stream = regression_problem(clients=3, rounds=5)
    assert repr(dictionary) == "Dictionary(regression, 6 models, 1.6 KiB: net0, net1, net2, …, net5)"
    assert repr(stream) == "Stream(regression, 3 clients × 5 rounds, inputs of shape (3,))"
    named = replace(stream, names=("fan", "pump", "valve"), changes=(2,))
    assert repr(named) == "Stream(regression, 3 clients × 5 rounds, inputs of shape (3,), 1 changes: fan to valve)"
    result = ofms.simulate(models=dictionary, stream=stream, budget="3", bandwidth="60%", seed=2)
    score = f"mse {1000 * result.mean:.2f} ± {1000 * result.std:.2f} ×10⁻³"
    assert repr(result) == f"Result(own stream, late-hedge, 3 clients × 5 rounds, seed 2: {score})"


def test_tables_name_clients_and_models(tmp_path: Path) -> None:
    dictionary, stream = regression_problem(clients=3, rounds=5)
    names = ("fan", "pump, large", "valve")
    result = ofms.simulate(models=dictionary, stream=replace(stream, names=names), budget="3", bandwidth="60%")
    for rows, columns in (
        ("clients", ["client"]),
        ("rounds", ["round"]),
        ("models", ["model"]),
        ("weights", ["client", "model"]),
    ):
        path = result.to_csv(tmp_path / f"{rows}.csv", rows)  # type: ignore[arg-type]
        read = pandas.read_csv(path, index_col=columns)
        pandas.testing.assert_frame_equal(read, result.to_pandas(rows), rtol=0, check_dtype=False)  # type: ignore[arg-type]
    clients = result.to_pandas()
    assert clients.loc["pump, large", "score"] == result.score[1]
    weights = result.to_pandas("weights")
    assert weights.loc[("valve", "net4"), "weight"] == result.clients["prediction_share"][2, 4]
    assert weights["weight"].groupby("client").sum().tolist() == pytest.approx([1, 1, 1])
    models = result.to_pandas("models")
    assert models.index.tolist() == [f"net{index}" for index in range(6)]
    assert models.loc["net2", "score_alone"] == pytest.approx(result.clients["model_score"][:, 2].mean())
