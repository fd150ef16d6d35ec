"""A fleet in the middle of an exchange, and changed messages of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ofms.core.typing import AnyArray
from ofms.storage.envelope import Envelope, encode
from tests.fuzz.mutations import mutated, mutated_bytes
from tests.fuzz.tensor_files import mutated_tensors
from tests.local_fleet import LocalFleet

POLICIES = {"ofms-ft": {}, "late-hedge": {"settings": {"window": 4, "tune_every": 1, "warm_up": 0, "control_every": 2}}}


def fleet_of(folder: Path, policy: str) -> LocalFleet:
    """A fleet whose policy reports losses, or one that does not."""
    return LocalFleet(folder, policy=policy, **POLICIES[policy])


@st.composite
def changed_message(draw: st.DrawFn, envelope: Envelope) -> bytes:
    """A message with other values, other arrays, or other bytes."""
    content = encode(envelope)
    kind = draw(st.sampled_from(["values", "values", "arrays", "arrays", "header", "bytes", "kind"]))
    values, arrays = dict(envelope.values), dict(envelope.arrays)
    if kind == "header":
        return draw(mutated_tensors(content))
    if kind == "bytes":
        return draw(mutated_bytes(content))
    if kind == "values":
        values = draw(mutated(values))
    elif kind == "arrays" and arrays:
        for name in draw(st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=2, unique=True)):
            array = arrays.pop(name)
            changed = draw(changed_array(array))
            if changed is not None:
                arrays[draw(st.sampled_from([name, name, name, "delta.99.0.bias", "delta.x", "model.-1", ""]))] = (
                    changed
                )
    else:
        return encode(Envelope(draw(st.sampled_from(["request", "grant", "welcome", "", "refusal"])), values, arrays))
    try:
        return encode(Envelope(envelope.kind, values, arrays))
    except (TypeError, ValueError, OverflowError):
        return content  # Such a message cannot be written.


@st.composite
def changed_array(draw: st.DrawFn, array: AnyArray) -> AnyArray | None:
    """An array of another shape, type or content; None for none."""
    with np.errstate(all="ignore"):  # What does not fit a type becomes something else.
        return _changed(draw, array)


def _changed(draw: st.DrawFn, array: AnyArray) -> AnyArray | None:
    kind = draw(st.sampled_from(["none", "fill", "fill", "dtype", "flat", "less", "more", "scalar", "empty", "bytes"]))
    if kind == "fill":
        value: Any = draw(st.sampled_from([np.nan, np.inf, -np.inf, -1, 0, 1, 127, 1e30, -1e30, 2**40]))
        return np.where(draw(st.booleans()) or array != array, np.float64(value), array).astype(array.dtype)
    if kind == "bytes" and array.dtype == np.uint8:
        return np.frombuffer(draw(mutated_tensors(array.tobytes())), dtype=np.uint8)
    changes: dict[str, Any] = {
        "dtype": array.astype(draw(st.sampled_from(["f4", "f8", "i4", "i8", "u1", "b1", "f2"]))),
        "flat": array.ravel(),
        "less": array[..., :-1],
        "more": np.concatenate([array, array], axis=-1) if array.ndim else array,
        "scalar": np.array(0, dtype=array.dtype),
        "empty": np.zeros((0,), dtype=array.dtype),
    }
    return changes.get(kind)
