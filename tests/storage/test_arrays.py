"""Arrays as the bytes of safetensors files, against the library; how often their memory is taken."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import ofms
from ofms.core.typing import AnyArray
from ofms.storage.arrays import decode_arrays, encode_arrays, encoded_parts, read_metadata, shared_arrays
from tests.memory_taken import bytes_taken

TYPES = ["?", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
ARRAYS = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "__metadata__"),
    arrays_of.arrays(st.sampled_from(TYPES), arrays_of.array_shapes(min_dims=0, min_side=0)),
    max_size=4,
)
# Without any, and without arrays, the library writes no JSON.
METADATA = st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=2)
LARGE = 2**22


@given(ARRAYS, METADATA)
def test_the_library_reads_what_is_written_and_the_reverse(arrays: dict[str, AnyArray], metadata: Any) -> None:
    written, by_library = encode_arrays(arrays, metadata), safetensors.numpy.save(arrays, metadata)
    for content, read in (
        (written, safetensors.numpy.load),
        (written, shared_arrays),
        (by_library, decode_arrays),
        (by_library, shared_arrays),
    ):
        found = read(content)
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[name], array)
    assert read_metadata(written) == read_metadata(by_library) == metadata


def test_other_byte_orders_and_layouts_are_written() -> None:
    arrays = {"big": np.arange(6, dtype=">i4"), "transposed": np.arange(6.0).reshape(2, 3).T, "part": np.arange(9)[::2]}
    found = safetensors.numpy.load(encode_arrays(arrays, {}))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_content_is_copied_once_when_it_is_written_and_never_when_it_is_shared() -> None:
    arrays = {f"model.{number}": np.zeros(LARGE // 4, np.uint8) for number in range(4)}
    content = encode_arrays(arrays, {})
    assert LARGE < bytes_taken(lambda: encode_arrays(arrays, {})) < 1.1 * LARGE
    assert bytes_taken(lambda: encoded_parts(arrays, {})) < 0.1 * LARGE
    assert bytes_taken(lambda: shared_arrays(content)) < 0.1 * LARGE
    assert LARGE < bytes_taken(lambda: decode_arrays(content)) < 1.1 * LARGE


def test_only_arrays_that_are_not_shared_can_be_written() -> None:
    content = encode_arrays({"a": np.arange(3)}, {})
    assert not shared_arrays(memoryview(bytearray(content)))["a"].flags.writeable
    own = decode_arrays(content)["a"]
    own[:] = 7
    assert decode_arrays(content)["a"].tolist() == [0, 1, 2]


def test_arrays_at_any_place_are_read() -> None:
    header = b'{"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}'
    for spaces in range(8):
        padded = header + b" " * spaces
        content = len(padded).to_bytes(8, "little") + padded + np.array([1.0, 2.0]).tobytes()
        found = decode_arrays(content)["a"]
        assert found.flags.aligned
        assert found.tolist() == shared_arrays(content)["a"].tolist() == [1.0, 2.0]


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": ENTRY | {"data_offsets": [0, 3]}},
        {"a": ENTRY | {"shape": [5]}},
        {"a": ENTRY | {"shape": [-4]}},
        {"a": ENTRY | {"shape": [2**62, 2**62, 0]}, "b": ENTRY | {"data_offsets": [4, 8]}},
        {"a": ENTRY | {"shape": [1] * 33}},
        {"a": ENTRY, "b": ENTRY},
        {"a": ENTRY | {"data_offsets": [4, 8]}},
        {"a": ENTRY, "b": ENTRY | {"data_offsets": [6, 8], "shape": [2]}},
        {"a": ENTRY | {"data_offsets": [4, 0]}},
        {"a": ENTRY | {"data_offsets": [0, 8]}},
        {"a": ENTRY | {"dtype": "C64"}},
        {"a": {"dtype": "U8", "shape": [8]}},
        {"a": 3},
        [],
    ],
)
def test_arrays_that_do_not_fill_the_file_are_rejected(entries: Any) -> None:
    header = msgspec.json.encode(entries)
    with pytest.raises(ofms.InvalidInput, match="not a complete safetensors file"):
        shared_arrays(len(header).to_bytes(8, "little") + header + bytes(8))
