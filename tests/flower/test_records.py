"""Letters through Flower's records, and what somebody else's records may try."""

from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import ofms
from ofms.flower.records import from_record, record_size, to_record
from ofms.storage.envelope import Envelope

PLAIN = st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.uint8])


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), arrays_of.arrays(PLAIN, arrays_of.array_shapes()), max_size=3),
    st.dictionaries(
        st.text(max_size=5), st.integers(-(2**53), 2**53) | st.text(max_size=9) | st.booleans(), max_size=3
    ),
)
def test_letters_there_and_back(arrays: dict[str, np.ndarray], values: dict[str, object]) -> None:
    record = to_record(Envelope("grant", values, arrays))
    back = from_record(record)
    assert (back.kind, dict(back.values)) == ("grant", values)
    assert list(back.arrays) == list(arrays)
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)
    assert record_size(record) >= sum(array.nbytes for array in arrays.values())


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


HUGE = saved(np.zeros(3, np.float32)).replace(b"(3,), }", b"(3000000000000,), }")

BAD = {
    "nothing": b"",
    "a zip file": b"PK\x03\x04nonsense",
    "half an array": saved(np.zeros(9))[:-8],
    "objects, pickled": saved(np.array([{"a": 1}], dtype=object)),
    "text": saved(np.array(["poem"])),
    "the other byte order": saved(np.zeros(3, ">f4")),
    "long numbers": saved(np.zeros(3, np.longdouble)),
    "more than there is": HUGE,
    "records": saved(np.zeros(2, dtype=[("a", "f4")])),
}


@pytest.mark.parametrize("bad", BAD)
def test_arrays_that_are_none_are_refused(bad: str) -> None:
    record = to_record(Envelope("request", {}, {"x": np.zeros(3, np.float32)}))
    record["arrays"] = ArrayRecord({"x": Array("float32", (3,), "numpy.ndarray", BAD[bad])})
    with pytest.raises(ofms.InvalidInput):
        from_record(record)


def test_messages_that_hold_no_letter_are_refused() -> None:
    deep = "[" * 100_000
    for content in (
        RecordDict(),
        RecordDict({"letter": ConfigRecord({"protocol": 1})}),
        RecordDict({"letter": ConfigRecord({"protocol": 99, "kind": "x", "values": "{}"}), "arrays": ArrayRecord()}),
        RecordDict({"letter": ConfigRecord({"protocol": 1, "kind": "x", "values": deep}), "arrays": ArrayRecord()}),
        RecordDict({"letter": ConfigRecord({"protocol": 1, "kind": "x", "values": "[1]"}), "arrays": ArrayRecord()}),
    ):
        with pytest.raises(ofms.InvalidInput):
            from_record(content)
