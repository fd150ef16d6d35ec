"""Wave farms: files in the real format, and synthetic ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.data import load_dataset, wec
from ofms.data.download import Archive
from ofms.data.wec import TEST_SITES, TRAINING_SITES
from ofms.data.wec_synthetic import make_table
from ofms.reproduction.bench import columns_here


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four small files in the real format, made by the generator."""
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    monkeypatch.setattr(wec, "ROWS", 60)
    (tmp_path / "wec").mkdir()
    for site in (*TEST_SITES, *TRAINING_SITES):
        np.savetxt(tmp_path / "wec" / f"{site}_Data.csv", make_table(site, 60), delimiter=",", fmt="%.4f")
    return tmp_path / "wec"


def test_the_files_become_streams_and_training_sets(folder: Path) -> None:
    dataset = load_dataset("wec")
    assert "4 sites of 60 rows" in dataset.check()
    stream = dataset.stream(clients=5, rounds=20, seed=0)
    assert stream.x.shape == (5, 20, 48)
    assert np.linalg.norm(stream.x, axis=-1).max() == pytest.approx(1, abs=0.05)
    assert stream.y.min() >= 0
    assert stream.y.max() <= 1
    adelaide = np.loadtxt(folder / "Adelaide_Data.csv", delimiter=",")
    ratio = stream.x[1, 0] / adelaide[20, :48]
    assert np.ptp(ratio) < 1e-3 * ratio.mean(), "client 1 of Adelaide starts at row 20"
    sets = dataset.training_sets(seed=0)
    assert [each.label for each in sets] == ["sydney", "tasmania"]
    assert sets[0].x.shape == (60, 48)
    with pytest.raises(InvalidInput, match="Adelaide has 60 complete rows"):
        dataset.stream(clients=8, rounds=20, seed=0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("column", "it has 60 rows of 48 columns, not 60 of 49"),
        ("half", "it has 30 rows of 49 columns, not 60 of 49"),
        ("header", "not a table of numbers"),
        ("gap", "row 3 has a missing value"),
        ("missing", "ofms data wec"),
    ],
)
def test_damaged_files_are_refused_in_one_line(folder: Path, damage: str, message: str) -> None:
    path = folder / "Perth_Data.csv"
    lines = path.read_text().splitlines()
    if damage == "column":
        lines = [line.rpartition(",")[0] for line in lines]
    elif damage == "header":
        lines.insert(0, ",".join(f"X{number}" for number in range(49)))
    elif damage == "half":
        lines = lines[:30]
    elif damage == "gap":
        lines[2] = "," + lines[2].partition(",")[2]
    path.write_text("\n".join(lines))
    if damage == "missing":
        path.unlink()
    with pytest.raises(InvalidInput, match=message) as refusal:
        load_dataset("wec").stream(clients=4, rounds=10, seed=0)
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(InvalidInput, match=message):
        load_dataset("wec").check()
    with pytest.raises(InvalidInput, match=message):
        columns_here()


def test_malformed_files_are_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "Perth_Data.csv").write_text("1,2,3\n")
    archives = [b"<html>busy</html>", _zip({"data.zip": _zip(whole)})]

    def download(archive: Archive, into: Path) -> Path:
        path = into / "wave+energy+converters.zip"
        path.write_bytes(archives.pop(0))
        return path

    monkeypatch.setattr(Archive, "_download", download)
    with pytest.raises(InvalidInput, match="not a complete archive"):
        load_dataset("wec").fetch()
    load_dataset("wec").fetch()
    assert (folder / "Perth_Data.csv").read_bytes() == whole["Perth_Data.csv"]
    load_dataset("wec").fetch()
    assert not archives, "complete files are not fetched again"


def test_synthetic_farms_are_used_without_the_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    assert columns_here() == ["cifar10", "mnist", "air", "wec-synthetic"]


def _zip(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_synthetic_farms_have_the_real_format() -> None:
    table = make_table("Perth", 900)
    assert table.shape == (900, 49)
    assert table[:, :32].min() >= 0
    assert table[:, :32].max() <= 566
    assert table[:, 32:48].min() > 0
    assert table[:, 48] == pytest.approx(table[:, 32:48].sum(axis=1))
    assert (make_table("Perth", 100) == table[:100]).all(), "a longer table begins with the same rows"
    assert np.abs(np.diff(table[:400, :32], axis=0)).max() < 10, "layouts move slowly"


def test_synthetic_farms_are_named_as_such() -> None:
    dataset = load_dataset("wec-synthetic")
    dataset.fetch()
    assert "SYNTHETIC" in dataset.summary
    assert "synthetic" in dataset.check()
