"""NumPy archives: any file is read as a stream of finite numbers, or refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from tests.fuzz.amounts import inputs
from tests.fuzz.archives import VALID, archive, declared, member
from tests.fuzz.holding import accepted
from tests.fuzz.mutations import mutated_bytes
from tests.fuzz.places import Place
from tests.fuzz.table_sources import require_stream, source_of

DTYPES = st.sampled_from(["f2", ">f4", "f8", "i8", "u8", "b1", "c8", "U3", "S3", "M8[s]", "m8[s]", "f4,i4", "V4", "O"])
SHAPES = st.sampled_from(["(2, 4, 3)", "(2**31, 2**31)", "(10**14,)", "(-1, 4)", "()", "(0, 4, 3)", "None", "(2, 4"])
SHAPES |= st.sampled_from([f"({2**40},)", f"({2**62}, 4)", "(1000000000000, 2, 4)", "(" * 500])


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """An archive with an array of another type or shape, or a member that is none."""
    name = draw(st.sampled_from([*VALID, "../../up.npy", "/etc/up.npy", "x"]))
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, max_side=4) | st.sampled_from([(2, 4), (2, 4, 3)]))
    kind = draw(st.sampled_from(["array", "array", "declared", "bytes", "dropped"]))
    members = dict(VALID)
    if kind == "array":
        dtype = np.dtype(draw(DTYPES))
        if dtype.kind == "f":
            members[name] = member(draw(arrays_of.arrays(dtype, shape)))
        else:
            members[name] = member(np.zeros(shape, dtype))
    elif kind == "declared":
        members[name] = declared(draw(SHAPES), draw(st.sampled_from(["'<f4'", "'|O'", "'<U3'", "[]", "'<f999'", "3"])))
    elif kind == "bytes":
        members[name] = draw(mutated_bytes(VALID.get(name, VALID["x.npy"])))
    else:
        members.pop(name, None)
    return archive(members, compressed=draw(st.booleans()))


@inputs("npz")
@given(archives() | mutated_bytes(archive(VALID)), st.sampled_from(["classification", "regression"]))
@example(archive(VALID | {"x.npy": bytes(2**22)}, compressed=True), "regression")
@example(archive(VALID | {"x.npy": declared("(4000000000, 2, 4)")}), "regression")
@example(b"", "regression")
def test_any_archive_is_read_or_refused(place: Place, content: bytes, task: Any) -> None:
    (place.fresh() / "stream.npz").write_bytes(content)
    source = source_of({"task": task}, "stream.npz")
    assert source is not None
    stream = accepted(source.read)
    if stream is not None:
        require_stream(stream, source)
