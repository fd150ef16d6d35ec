"""Safetensors files, as a header and data, and changes of either."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.mutations import VALUES, mutated, mutated_bytes

_DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "U64", "BOOL", "C64", "F8_E4M3", "F4", "OBJECT", ""]
_VALUES = (
    st.sampled_from(_DTYPES)
    | st.sampled_from([[0, 2**40], [2**63, 2**63], [4, 0], [0, 0], [2**20, 2**20], [-1, 4], []]).map(list)
    | st.sampled_from(["../../up", "/etc/passwd", "0.weight", "__metadata__"])
    | VALUES
)
_FLOATS = [float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e-45, 0.0]


def parts_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + size])
    return header, content[8 + size :]


def file_of(header: Any, data: bytes) -> bytes:
    """The safetensors file with a header and data."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@st.composite
def mutated_tensors(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file with a changed header, values that are not finite, other types, or changed data."""
    header, data = parts_of(content)
    kind = draw(st.sampled_from(["header", "header", "values", "types", "data", "length"]))
    if kind == "header":
        header = draw(mutated(header, values=_VALUES))
    elif kind == "values":
        place = draw(st.integers(0, max(len(data) // 4 - 1, 0)))
        value = np.float32(draw(st.sampled_from(_FLOATS))).tobytes()
        data = data[: 4 * place] + value + data[4 * place + 4 :]
    elif kind == "types":
        # The same number of bytes, read as something else.
        dtype = draw(st.sampled_from(_DTYPES))
        for name in draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=3)):
            if isinstance(header[name], dict) and "dtype" in header[name]:
                header[name] |= {"dtype": dtype}
    elif kind == "data":
        data = draw(mutated_bytes(data))
    else:
        length = draw(st.sampled_from([0, 1, 2, 2**31, 2**40, 2**62, 2**63, 2**64 - 1]) | st.integers(0, 2000))
        return length.to_bytes(8, "little") + content[8:]
    return file_of(header, data)
