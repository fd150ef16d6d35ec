"""CSV files: any table is read as a stream of finite numbers, or refused in one line."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ofms.data.stream import Stream
from ofms.data.table import TableSource
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import accepted
from tests.fuzz.mutations import mutated, mutated_bytes
from tests.fuzz.places import Place
from tests.fuzz.table_sources import CELLS, SOURCE, require_stream, source_of

ROWS: list[list[Any]] = [
    ["name", "site", "a", "b", "c", "y"],
    *([name, "north", 0.5, -1.25, index, index % 2] for index in range(3) for name in ("fan", "pump")),
]


def as_csv(rows: Any) -> bytes:
    """Rows as text, without quotes: a cell may contain a separator."""
    lines = [",".join(map(_cell, row)) if isinstance(row, list) else _cell(row) for row in rows]
    return "\n".join(lines).encode("utf-8", "replace")


def _cell(value: Any) -> str:
    # A number of thousands of digits is not converted to text by Python.
    return "9" * 400 if isinstance(value, int) and abs(value) > 10**400 else str(value)


@inputs("csv")
@given(mutated(ROWS, values=CELLS).map(as_csv) | mutated_bytes(as_csv(ROWS)), mutated(SOURCE) | st.just(SOURCE))
@example(b"", SOURCE)
@example(b"\xff\xfe", SOURCE)
@example(b"a,b\n" + b'"', SOURCE)
@example(as_csv([[*row, f"{1e39:.0f}"] for row in ROWS]), SOURCE)
@example(
    as_csv([ROWS[0], *([place, *row[1:]] for place, row in zip(["001", "1", "1.0", "NA"], ROWS[1:], strict=False))]),
    SOURCE,
)
@example(as_csv([ROWS[0], *([7, *row] for row in ROWS[1:])]), SOURCE)
@example(as_csv(ROWS).replace(b"0.5", b"0\x005"), SOURCE)
def test_any_table_is_read_or_refused(place: Place, content: bytes, source: Any) -> None:
    (place.fresh() / "stream.csv").write_bytes(content)
    table = source_of(source, "stream.csv")
    stream = None if table is None else accepted(table.read)
    if stream is not None and table is not None:
        require_stream(stream, table)
        require_same_content(stream, table)


def require_same_content(stream: Stream, source: TableSource) -> None:
    """Clients and their values are those that Python's reader of CSV files finds."""
    with open(source.file, encoding="utf-8-sig", newline="") as file:
        # Blank lines are no rows, nor are those of spaces.
        rows = [row for row in csv.DictReader(file) if any(str(value).strip() for value in row.values() if value)]
    assert source.client is not None
    assert source.target is not None
    assert set(stream.names) == {row[source.client] for row in rows}
    features = source.features or tuple(
        name for name in rows[0] if name not in (source.client, source.target, source.site)
    )
    for client, name in enumerate(stream.names):
        own = [row for row in rows if row[source.client] == name][: stream.rounds]
        assert len(own) == stream.rounds
        inputs = [[_number(row[feature]) for feature in features] for row in own]
        assert stream.x[client] == pytest.approx(np.array(inputs), rel=1e-6)
        assert stream.y[client] == pytest.approx(np.array([_number(row[source.target]) for row in own]), rel=1e-6)


def _number(text: str) -> float:
    truth = {"true": 1.0, "false": 0.0}
    return truth[text.lower()] if text.lower() in truth else float(text)
