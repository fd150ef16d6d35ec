"""Envelopes: any bytes are decoded to plain values and arrays, or refused in one line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st

from ofms.storage.arrays import decode_arrays, shared_arrays
from ofms.storage.envelope import Envelope, decode, decode_head, encode
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import accepted
from tests.fuzz.mutations import mutated, mutated_bytes
from tests.fuzz.tensor_files import file_of, mutated_tensors, parts_of

ARRAYS = {"grant.held": np.zeros((1, 3), np.bool_), "model.0": np.arange(40, dtype=np.uint8)}
VALUES = {
    "exchange": 3,
    "opening": "an opening",
    "versions": {"0": 1},
    "weights": {"0": 0.5},
    "models": [{"name": "a"}],
}
CONTENT = encode(Envelope("grant", VALUES, ARRAYS))


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """An envelope with a changed head."""
    header, data = parts_of(CONTENT)
    head: dict[str, Any] = json.loads(header["__metadata__"]["ofms"])
    header["__metadata__"]["ofms"] = json.dumps(draw(mutated(head)))
    return file_of(header, data)


@inputs("envelopes")
@given(heads() | mutated_tensors(CONTENT) | mutated_bytes(CONTENT))
@example((2**63).to_bytes(8, "little") + CONTENT[8:])
@example(b"\xff" * 8)
@example(file_of({"__metadata__": {"ofms": "[" * 5000}}, b""))
@example(file_of({"__metadata__": {"ofms": '{"protocol":2,"kind":"a","values":{"a":1e999}}'}}, b""))
def test_any_envelope_is_decoded_or_refused(content: bytes) -> None:
    envelope, head = accepted(decode, content), accepted(decode_head, content)
    if envelope is not None:
        assert head == (envelope.kind, envelope.values) or envelope.values != envelope.values
        assert all(array.dtype.kind in "biuf" for array in envelope.arrays.values())
        assert sum(array.nbytes for array in envelope.arrays.values()) <= len(content)


@inputs("arrays of envelopes")
@given(mutated_tensors(CONTENT) | mutated_bytes(CONTENT))
def test_what_is_decoded_is_what_the_library_reads(content: bytes) -> None:
    own, shared = accepted(decode_arrays, content), accepted(shared_arrays, content)
    assert (own is None) == (shared is None)
    if own is not None and shared is not None:
        by_library = safetensors.numpy.load(content)
        assert own.keys() == shared.keys() == by_library.keys()
        for name, array in by_library.items():
            for found in (own[name], shared[name]):
                assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
