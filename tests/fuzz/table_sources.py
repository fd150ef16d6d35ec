"""Tables of streams: how they are described, and cells that their files may have."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ofms.core.errors import InvalidInput
from ofms.data.stream import Stream
from ofms.data.table import TableSource
from ofms.storage.schema import convert
from tests.fuzz.holding import require_refusal
from tests.fuzz.mutations import NUMBERS, TEXTS, VALUES

SOURCE: dict[str, Any] = {
    "task": "classification",
    "target": "y",
    "client": "name",
    "features": ["a", "b", "c"],
    "site": "site",
}
CELLS = (
    st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | VALUES | st.sampled_from(["y", "a", "1,2", '"', "2024-01-01"])
)


def source_of(values: Any, file: str) -> TableSource | None:
    """A table's description, as an experiment's file has it; None if it is refused."""
    try:
        return convert(values | {"file": file} if isinstance(values, dict) else values, TableSource)
    except InvalidInput as error:
        require_refusal(error)
        return None


def require_stream(stream: Stream, source: TableSource) -> None:
    """What every simulator relies on."""
    assert np.isfinite(stream.x).all()
    assert np.isfinite(stream.y).all()
    assert stream.y.shape == stream.x.shape[:2]
    assert stream.task == source.task
    assert len(set(stream.names)) in (0, stream.clients)
    assert stream.x.dtype == np.float32
