"""CSV files: any table is read as a stream of finite numbers, or refused in one line."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

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
def test_any_table_is_read_or_refused(place: Place, content: bytes, source: Any) -> None:
    (place.fresh() / "stream.csv").write_bytes(content)
    table = source_of(source, "stream.csv")
    stream = None if table is None else accepted(table.read)
    if stream is not None and table is not None:
        require_stream(stream, table)
