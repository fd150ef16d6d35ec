"""Envelopes: round trips, and malformed ones from other senders."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import ofms
from ofms.core.typing import AnyArray
from ofms.storage.envelope import PROTOCOL, Envelope, decode, decode_head, encode

PLAIN = st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.uint8])
NAMES = st.text("abc.012", min_size=1, max_size=5)
SHAPES = arrays_of.array_shapes(min_dims=0)


@given(
    st.dictionaries(NAMES, arrays_of.arrays(PLAIN, SHAPES), max_size=3),
    st.dictionaries(
        st.text(max_size=5), st.integers(-(2**53), 2**53) | st.text(max_size=9) | st.booleans(), max_size=3
    ),
)
def test_envelopes_survive_a_round_trip(arrays: dict[str, AnyArray], values: dict[str, object]) -> None:
    content = encode(Envelope("grant", values, arrays))
    back = decode(content)
    assert (back.kind, dict(back.values)) == decode_head(content) == ("grant", values)
    assert set(back.arrays) == set(arrays)
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)


def head(**changes: object) -> dict[str, str]:
    return {"ofms": json.dumps({"protocol": PROTOCOL, "kind": "request", "values": {}} | changes)}


def with_header(header: object, data: bytes = b"") -> bytes:
    text = msgspec.json.encode(header)
    return len(text).to_bytes(8, "little") + text + data


WHOLE = encode(Envelope("request", {}, {"x": np.zeros(9, np.float32)}))
DEEP = '{"protocol": 2, "kind": "x", "values": ' + "[" * 100_000
ENTRY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
BAD = {
    "nothing": b"",
    "a zip file": b"PK\x03\x04nonsense",
    "half an array": WHOLE[:-8],
    "more than an array": WHOLE + b"more",
    "a header longer than all": (2**62).to_bytes(8, "little") + b"{}",
    "no envelope": safetensors.numpy.save({"x": np.zeros(3)}),
    "an older protocol": safetensors.numpy.save({}, head(protocol=1)),
    "no kind": safetensors.numpy.save({}, {"ofms": json.dumps({"protocol": PROTOCOL, "values": {}})}),
    "values that are a list": safetensors.numpy.save({}, head(values=[1])),
    "values without end": safetensors.numpy.save({}, {"ofms": DEEP}),
    "complex numbers": safetensors.numpy.save({"x": np.zeros(3, np.complex64)}, head()),
    "an array larger than its bytes": with_header(
        {"__metadata__": head(), "x": ENTRY | {"shape": [3_000_000_000_000]}}, bytes(12)
    ),
    "bytes beyond the end": with_header({"__metadata__": head(), "x": ENTRY | {"data_offsets": [0, 2**40]}}, bytes(12)),
    "an unknown type": with_header({"__metadata__": head(), "x": ENTRY | {"dtype": "OBJECT"}}, bytes(12)),
    "a type that NumPy lacks": with_header(
        {"__metadata__": head(), "x": {"dtype": "BF16", "shape": [6], "data_offsets": [0, 12]}}, bytes(12)
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_malformed_envelope_is_refused(bad: str) -> None:
    with pytest.raises(ofms.InvalidInput, match="message"):
        decode(BAD[bad])
