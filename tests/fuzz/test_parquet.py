"""Parquet files: any table is read as a stream of finite numbers, or refused in one line."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import pyarrow
import pyarrow.parquet
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.amounts import inputs
from tests.fuzz.holding import accepted
from tests.fuzz.mutations import mutated, mutated_bytes
from tests.fuzz.places import Place
from tests.fuzz.table_sources import CELLS, SOURCE, require_stream, source_of

COLUMNS: dict[str, Any] = {
    "name": ["fan", "pump"] * 3,
    "site": ["north", "south"] * 3,
    "a": [0.5] * 6,
    "b": [-1.25] * 6,
    "c": [0, 0, 1, 1, 2, 2],
    "y": [0, 0, 1, 1, 0, 0],
}
TYPES = [
    *(pyarrow.string(), pyarrow.binary(), pyarrow.bool_(), pyarrow.float16(), pyarrow.uint64(), pyarrow.int8()),
    *(pyarrow.decimal128(20, 3), pyarrow.timestamp("us"), pyarrow.list_(pyarrow.int64()), pyarrow.null()),
    pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
]
VALUES: dict[Any, Any] = {
    pyarrow.string(): "a",
    pyarrow.binary(): b"\xff",
    pyarrow.bool_(): True,
    pyarrow.decimal128(20, 3): decimal.Decimal("1.5"),
    pyarrow.timestamp("us"): datetime.datetime(2024, 1, 1),
    pyarrow.list_(pyarrow.int64()): [1],
    pyarrow.null(): None,
    pyarrow.dictionary(pyarrow.int8(), pyarrow.string()): "a",
}


def as_parquet(table: pyarrow.Table) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A table with columns of other types, values or lengths."""
    if draw(st.booleans()):
        columns = dict(COLUMNS)
        for name in draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=2)):
            kind = draw(st.sampled_from(TYPES))
            some = draw(st.sampled_from([VALUES.get(kind, 1), None]))
            columns[name] = pyarrow.array([VALUES.get(kind, 1), some] * 3, type=kind)
        return as_parquet(pyarrow.table(columns))
    changed = draw(mutated(COLUMNS, values=CELLS))
    try:
        return as_parquet(pyarrow.table(changed))
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        # Such a table cannot be written either.
        return as_parquet(pyarrow.table(COLUMNS).select(draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True))))


@inputs("parquet")
@given(tables() | mutated_bytes(as_parquet(pyarrow.table(COLUMNS))), mutated(SOURCE) | st.just(SOURCE))
@example(b"", SOURCE)
@example(b"PAR1" * 3, SOURCE)
def test_any_table_is_read_or_refused(place: Place, content: bytes, source: Any) -> None:
    (place.fresh() / "stream.parquet").write_bytes(content)
    table = source_of(source, "stream.parquet")
    stream = None if table is None else accepted(table.read)
    if stream is not None and table is not None:
        require_stream(stream, table)
