"""Work on many clients in blocks: the intermediate results of a block fit the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

CLIENTS = 4096


def in_blocks(state: T, clients: int, work: Callable[[T, slice], T]) -> T:
    """Apply `work` to the state of a block of clients at a time.

    Arrays of the state whose first axis has another length are shared by all clients.
    """
    if clients <= CLIENTS:
        return work(state, slice(0, clients))
    blocks = [slice(first, min(first + CLIENTS, clients)) for first in range(0, clients, CLIENTS)]
    joined: T = _joined([work(_rows(state, clients, block), block) for block in blocks], clients)
    return joined


def _rows(value: Any, clients: int, block: slice) -> Any:
    if isinstance(value, np.ndarray):
        return value[block] if value.shape[:1] == (clients,) else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _rows(getattr(value, each.name), clients, block) for each in fields(value)})
    return value


def _joined(values: Sequence[Any], clients: int) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray):
        whole = first.ndim > 0 and sum(value.shape[0] for value in values) == clients
        return np.concatenate(values) if whole else first
    if is_dataclass(first) and not isinstance(first, type):
        parts = {each.name: [getattr(value, each.name) for value in values] for each in fields(first)}
        return replace(first, **{name: _joined(part, clients) for name, part in parts.items()})
    return first
