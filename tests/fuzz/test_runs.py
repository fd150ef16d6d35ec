"""Run folders and cells: whatever they hold, a page is written or a run resumed, or it is refused in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.report import page
from ofms.runs.result import Result
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import accepted, command
from tests.fuzz.mutations import mutated, mutated_bytes, mutated_text
from tests.fuzz.places import Place
from tests.fuzz.tensor_files import mutated_tensors

FINISHED = ["config.toml", "summary.json", "metrics.jsonl", "clients.npz", "history.npz"]
SAVED = ["config.toml", "summary.json", "models/dictionary.json", "models/net1.safetensors"]
INTERRUPTED = ["config.toml", "metrics.jsonl", "checkpoint/latest.json", "checkpoint/*.safetensors"]


@st.composite
def changed_file(draw: st.DrawFn, folder: Path, names: list[str]) -> tuple[str, bytes | None]:
    """The name of a run's file, and its changed content; None if it is missing."""
    (path,) = folder.glob(draw(st.sampled_from(names)))
    name, content = str(path.relative_to(folder)), path.read_bytes()
    if draw(st.integers(0, 9)) == 0:
        return name, None
    changed = [mutated_bytes(content)]
    if path.suffix == ".toml":
        changed.append(mutated_text(content.decode()).map(str.encode))
    elif path.suffix == ".json":
        changed.append(mutated(json.loads(content)).map(_json))
    elif path.suffix == ".jsonl":
        changed.append(mutated([json.loads(line) for line in content.splitlines()]).map(_json_lines))
    elif path.suffix == ".safetensors":
        changed.append(mutated_tensors(content))
    else:
        changed.append(_archives(content))
    return name, draw(st.one_of(changed))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _json_lines(values: Any) -> bytes:
    return b"\n".join(map(_json, values)) + b"\n"


@st.composite
def _archives(draw: st.DrawFn, content: bytes) -> bytes:
    """An archive in which an array is missing, or has another shape, type or values."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    name = draw(st.sampled_from(sorted(arrays)))
    array = arrays.pop(name)
    kind = draw(st.sampled_from(["drop", "rename", "flat", "less", "scalar", "text", "nan", "wide"]))
    changes: dict[str, Any] = {
        "flat": array.ravel(),
        "less": array[:-1],
        "scalar": np.array(0.5),
        "text": np.full(array.shape, "a"),
        "wide": array[..., None],
    }
    if kind == "nan":
        arrays[name] = np.full(array.shape, np.nan)
    elif kind != "drop":
        arrays[name if kind != "rename" else "other"] = changes.get(kind, array)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@inputs("finished runs")
@given(st.data())
def test_any_finished_run_becomes_a_page_or_is_refused(place: Place, data: st.DataObject) -> None:
    name, content = data.draw(changed_file(place.valid / "run", FINISHED))
    work = place.fresh("run")
    write(work / "run" / name, content)
    with pytest.MonkeyPatch.context() as patch:
        # Charts take most of the time: a twentieth of the pages have them, a few of these as pictures.
        drawn = data.draw(st.integers(0, 99))
        if drawn:
            patch.setattr("ofms.report.svg.to_svg", lambda *given: "")
            patch.setattr("ofms.report.heatmaps.to_svg", lambda *given: "")
        if drawn > 5:
            patch.setattr("ofms.report.charts.line_chart", lambda *given, **options: "")
            patch.setattr("ofms.report.page.shares_chart", lambda *given: "")
            patch.setattr("ofms.report.page.weights_chart", lambda *given: "")
        command("report", "run", "--out", "page.html", writes=[work])
    run = accepted(Result.load, work / "run")
    if run is not None:
        accepted(run.table)
        accepted(run.to_pandas)
        accepted(run.to_pandas, "rounds")


@inputs("interrupted runs")
@given(st.data())
def test_any_interrupted_run_is_resumed_or_refused(place: Place, data: st.DataObject) -> None:
    name, content = data.draw(changed_file(place.valid / "interrupted", INTERRUPTED))
    work = place.fresh("interrupted")
    write(work / "interrupted" / name, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "write_report", lambda *given: Path("none"))
        command("run", "--resume", "interrupted", writes=[work])


@inputs("models of runs")
@given(st.data())
def test_the_models_of_any_run_are_exported_or_refused(place: Place, data: st.DataObject) -> None:
    run, names = data.draw(st.sampled_from([("run", SAVED), ("interrupted", INTERRUPTED)]))
    name, content = data.draw(changed_file(place.valid / run, names))
    work = place.fresh(run)
    write(work / run / name, content)
    if command("models", "export", run, "out", writes=[work]).status:
        assert not (work / "out").exists()
    elif run == "run":
        # Networks are not built, because that would import the user's code: changed options and shapes are copied.
        assert command("check", "out", writes=[work]).status == command("check", "run/models", writes=[work]).status
    else:
        assert command("check", "out", writes=[work]).status == 0, "what is exported can be used"


@inputs("cells")
@given(st.data())
def test_any_cell_is_read_or_refused(place: Place, data: st.DataObject) -> None:
    content = (place.valid / "cell.json").read_bytes()
    work = place.fresh()
    (work / "cell.json").write_bytes(data.draw(mutated(json.loads(content)).map(_compact) | mutated_bytes(content)))
    run = accepted(Result.load, work / "cell.json")
    if run is not None:
        accepted(run.table)
    assert command("report", "cell.json", "--out", "page.html", writes=[work]).status == 2


def _compact(value: Any) -> bytes:
    """As a cell is written: it is known by its first bytes."""
    return json.dumps(value, separators=(",", ":")).encode()
