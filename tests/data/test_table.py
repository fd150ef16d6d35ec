"""Streams from the user's own files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from ofms.core.errors import InvalidInput
from ofms.data.table import TableSource


@pytest.fixture
def source(tmp_path: Path) -> TableSource:
    table = pandas.DataFrame(
        {
            "device": ["b", "a", "b", "a", "b"],
            "heat": [1.0, 2.0, 3.0, 4.0, 5.0],
            "note": ["x"] * 5,
            "load": [10, 20, 30, 40, 50],
            "label": [0, 1, 1, 0, 1],
        }
    )
    table.to_csv(tmp_path / "data.csv", index=False)
    columns: dict[str, Any] = {"target": "label", "client": "device", "features": ("load", "heat")}
    return TableSource(str(tmp_path / "data.csv"), "classification", most_dropped=0.2, **columns)


def test_rows_become_a_stream_in_the_order_of_the_file(source: TableSource) -> None:
    stream = source.read()
    assert stream.x.tolist() == [[[20, 2], [40, 4]], [[10, 1], [30, 3]]], "rows of b are cut to the length of a"
    assert stream.y.tolist() == [[1, 0], [0, 1]]
    assert stream.y.dtype == np.int64
    assert stream.names == ("a", "b")
    assert stream.warnings == ("the stream drops 1 of 5 rows: clients have 2 (a) to 3",)


def test_rows_that_are_dropped_are_counted_and_refused_past_a_tenth(source: TableSource) -> None:
    with pytest.raises(InvalidInput, match=r"drop 1 of 5 rows: clients have 2 \(a\) to 3; .* most_dropped = 0\.2"):
        replace(source, most_dropped=None).read()
    with pytest.raises(InvalidInput, match="would drop 1 of 5 rows"):
        replace(source, most_dropped=0.19).read()
    assert replace(source, most_dropped=0.0).read(rounds=1).warnings == (), "the user wants fewer rounds than there are"
    with pytest.raises(InvalidInput, match=r"stream\.most_dropped = 1\.5: give a share"):
        replace(source, most_dropped=1.5).read()
    path = Path(source.file)
    rows = [f"{name},{step},0,{step},1\n" for name in "ab" for step in range(10)]
    path.write_text("device,heat,note,load,label\n" + "".join(rows) + "c,1,0,1,1\n")
    with pytest.raises(InvalidInput, match=r"drop 18 of 21 rows: clients have 1 \(c\) to 10"):
        replace(source, most_dropped=None).read()
    path.write_text("device,heat,note,load,label\n" + "".join(rows) + "a,1,0,1,1\n")
    assert replace(source, most_dropped=None).read().warnings, "a twentieth is warned about"


def test_names_of_clients_in_an_archive(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x": np.zeros((2, 3, 1)), "y": np.zeros((2, 3))}
    source = TableSource(str(tmp_path / "data.npz"), "regression")
    np.savez(tmp_path / "data.npz", **arrays, names=np.array(["fan", "pump"]))
    assert source.read().names == ("fan", "pump")
    np.savez(tmp_path / "data.npz", **arrays, names=np.array(["fan", "fan"]))
    with pytest.raises(InvalidInput, match="stream names = 2: give each of the 2 clients one of its own"):
        source.read()
    np.savez(tmp_path / "data.npz", **arrays)
    assert source.read().names == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "colour"}, r"stream\.target = colour: the file has no such column; it has device, heat"),
        ({"client": None}, r"stream\.client = None: name the column"),
        ({"features": None}, r"column note = .*: it must be numeric"),
        ({"features": ("heat", "cold")}, r"stream\.features = cold"),
        ({"features": ("heat", "label")}, r"stream\.features = label: it is the target already"),
        ({"features": ("heat", "load", "heat")}, r"stream\.features = heat: it occurs twice"),
        ({"features": ("heat", "device")}, r"column device = .*: it must be numeric"),
        ({"features": ()}, r"stream\.features = \[\]: name at least one column"),
        ({"client": "label"}, r"stream\.client = label: it is the target already"),
        ({"file": "nothing.csv"}, "there is no such file"),
        ({"file": "data.xlsx"}, "no such file"),
    ],
)
def test_an_invalid_source_is_refused(source: TableSource, changes: dict[str, Any], message: str) -> None:
    changed = replace(source, **changes)
    with pytest.raises(InvalidInput, match=message) as refusal:
        changed.read()
    assert len(str(refusal.value).splitlines()) == 1


def test_whole_numbers_stored_as_floats_are_classes(source: TableSource) -> None:
    assert replace(source, target="heat", features=("load",)).read().y.tolist() == [[2, 4], [1, 3]]


def test_broken_files_are_refused(source: TableSource, tmp_path: Path) -> None:
    path = Path(source.file)
    path.write_text(path.read_text().replace("3.0", ""))
    with pytest.raises(InvalidInput, match=r"column heat = missing: row 3 has no value"):
        source.read()
    path.write_text("")
    with pytest.raises(InvalidInput, match="cannot be read as csv"):
        source.read()
    for mark in (";", "\t"):
        path.write_text("device,heat,load,label\na,1,3,0\n".replace(",", mark))
        with pytest.raises(InvalidInput, match="it has one column; separate columns by commas"):
            source.read()
    path.write_text("device,heat,load,label\na,1e300,3,0\n")
    with pytest.raises(InvalidInput, match=r"stream inputs = 1e\+300: see client a, round 1; beyond float32: scale"):
        source.read()
    path.write_text("device,heat,load,label\na,1,3,-2\n")
    with pytest.raises(InvalidInput, match="stream targets = -2: classes must be integers from 0"):
        source.read()
    path.write_text("device,heat,heat,load,label\na,1,2,3,0\n")
    with pytest.raises(InvalidInput, match="column heat occurs twice"):
        source.read()
    path.write_text("device,heat,load,label\n")
    with pytest.raises(InvalidInput, match="no rows"):
        source.read()
    (tmp_path / "data.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(InvalidInput, match="cannot be read as parquet"):
        replace(source, file=str(tmp_path / "data.parquet")).read()
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, 1)))
    with pytest.raises(InvalidInput, match="arrays x and y"):
        replace(source, file=str(tmp_path / "data.npz")).read()
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, 1)), y=np.full((2, 3), 0.5))
    with pytest.raises(InvalidInput, match="classes must be integers"):
        replace(source, file=str(tmp_path / "data.npz")).read()
    for content in (b"", b"PK\x03\x04 and then nothing"):
        (tmp_path / "data.npz").write_bytes(content)
        with pytest.raises(InvalidInput, match="arrays x and y"):
            replace(source, file=str(tmp_path / "data.npz")).read()
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InvalidInput, match="arrays x and y"):
        replace(source, file=str(tmp_path / "data.npz")).read()
    path.write_text("device,heat,load,label\na,1.0,10,0\n,2.0,20,1\n")
    with pytest.raises(InvalidInput, match="column device = missing: row 2 has no value"):
        source.read()
    path.with_suffix(".txt").write_text("x")
    with pytest.raises(InvalidInput, match=r"\.csv, \.parquet or \.npz"):
        replace(source, file=str(path.with_suffix(".txt"))).read()


def write_rows(source: TableSource, header: str, rows: list[str]) -> TableSource:
    Path(source.file).write_text("\n".join([header, *rows]) + "\n")
    return replace(source, client="c", target="y", features=None, task="regression")


def test_rows_that_are_longer_than_the_header_are_refused(source: TableSource) -> None:
    """They would be read with every value in the column before its own."""
    table = write_rows(source, "c,a,b,d,y", ["7,1,0.2,0.3,0.4,0.9", "7,2,0.2,0.3,0.4,0.9"])
    with pytest.raises(InvalidInput, match=r"line 2 has 6 fields, and the header 5; remove the fields, or name them"):
        table.read()
    table = write_rows(source, '"c","a\nb",y', ["7,1,3,", "8,2,3,"])
    with pytest.raises(InvalidInput, match="line 3 has 4 fields, and the header 3"):
        table.read()
    table = write_rows(source, "c,a,y", ["7,1,3", "8,2,3,4"])
    with pytest.raises(InvalidInput, match="line 3 has 4 fields, and the header 3"):
        table.read()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["011", "000", "2"], ("000", "2", "011")),
        (["1", "001", "1.0"], ("001", "1", "1.0")),
        (["NA", "None", "nan"], ("NA", "None", "nan")),
        (["10", "9", "pump"], ("10", "9", "pump")),
        (["true", "False", "1"], ("1", "False", "true")),
        (["1e3", "1000", '"a,b"'], ("1000", "1e3", "a,b")),
    ],
)
def test_clients_of_a_table_have_their_names_as_written(
    source: TableSource, given: list[str], names: tuple[str, ...]
) -> None:
    """Numbers are in numerical order."""
    table = write_rows(source, "c,a,y", [f"{name},{place},1" for place, name in enumerate(given)])
    stream = table.read()
    assert stream.names == names
    written = [name.strip('"') for name in given]
    assert stream.x[:, 0, 0].tolist() == [written.index(name) for name in names], "each has its own rows"


def test_a_client_that_stands_for_all_others_is_refused(source: TableSource) -> None:
    with pytest.raises(InvalidInput, match=r"stream names = \*: in budgets it stands for all other clients"):
        write_rows(source, "c,a,y", ["*,1,1", "pump,1,1"]).read()


def test_the_column_of_clients_may_be_an_input_too(source: TableSource) -> None:
    stream = replace(write_rows(source, "c,a,y", ["01,3,1", "10,4,1"]), features=("c", "a")).read()
    assert stream.names == ("01", "10")
    assert stream.x.tolist() == [[[1, 3]], [[10, 4]]]


def test_sites_are_in_the_order_of_the_clients(source: TableSource) -> None:
    rows = [f"{name},{place},{name},{step}" for step in range(4) for name, place in (("10", "01"), ("9", "1"))]
    table = replace(write_rows(source, "c,place,a,y", rows), site="place", features=("a",))
    stream = table.read_drifting(clients=2, rounds=4, seed=0, drift="switch")
    assert stream.names == ("9", "10")
    assert stream.x[:, 0, 0].tolist() == [9, 10]
    assert [set(values) for values in stream.x[..., 0].tolist()] == [{9, 10}, {9, 10}]
    with pytest.raises(InvalidInput, match="client 9 has 2 sites"):
        replace(write_rows(source, "c,place,a,y", [*rows, "9,2,9,1"]), site="place", features=("a",)).read_drifting(
            clients=2, rounds=4, seed=0, drift="switch"
        )


def test_as_many_rounds_as_the_shortest_client_has_are_accepted(source: TableSource) -> None:
    table = write_rows(source, "c,a,y", [*["a,1,1"] * 10, *["b,1,1"] * 3])
    assert table.read(2).warnings == ()
    assert table.read(3).warnings == ("the stream drops 7 of 13 rows: clients have 3 (b) to 10",), "but it is read"
    with pytest.raises(InvalidInput, match=r"would drop 7 of 13 rows.* request at most 3 rounds, or allow"):
        table.read(4)
    table = write_rows(source, "c,a,y", [*["a,1,1"] * 10, "b,1,1"])
    with pytest.raises(InvalidInput, match=r"request at most 1 round, or allow"):
        table.read()


def test_booleans_and_optional_numbers_become_numbers(source: TableSource, tmp_path: Path) -> None:
    table = write_rows(source, "c,a,b,y", ["p,True,0.5,1", "q,False,1.5,2"])
    assert table.read().x.tolist() == [[[1, 0.5]], [[0, 1.5]]]
    pytest.importorskip("pyarrow")
    columns = {
        "c": ["p", "q"],
        "a": pandas.array([3, 4], dtype="Int64"),
        "b": pandas.array([True, False], dtype="boolean"),
        "d": [0.5, 1.5],
        "y": pandas.array([1, 0], dtype="Int8"),
    }
    pandas.DataFrame(columns).to_parquet(tmp_path / "data.parquet")
    for task in ("regression", "classification"):
        stream = replace(table, file=str(tmp_path / "data.parquet"), task=task).read()
        assert stream.x.tolist() == [[[3, 1, 0.5]], [[4, 0, 1.5]]]
        assert stream.y.tolist() == [[1], [0]]
    columns["a"] = pandas.array([3, None], dtype="Int64")
    pandas.DataFrame(columns).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(InvalidInput, match="column a = missing: row 2 has no value"):
        replace(table, file=str(tmp_path / "data.parquet")).read()


def test_other_content_has_another_fingerprint(source: TableSource) -> None:
    before = source.fingerprint()
    Path(source.file).write_text(Path(source.file).read_text().replace("3.0", "3.5"))
    assert source.fingerprint() != before
    with pytest.raises(InvalidInput, match=r"stream\.file = nothing\.csv"):
        replace(source, file="nothing.csv").fingerprint()
