"""The processes that share a run: what each of them tells the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import msgspec
import numpy as np
import torch

from ofms.compute.protocol import Tensors
from ofms.compute.shards import Block, sum_nodes
from ofms.compute.updates import Updates, add_updates
from ofms.core.typing import AnyArray
from ofms.storage.typed import from_msgpack

Arrays = dict[str, AnyArray]


class Group(Protocol):
    """Processes of one run, numbered from 0. Every process makes the same calls in the same order."""

    rank: int
    size: int

    def gather(self, arrays: Mapping[str, AnyArray]) -> list[Arrays]:
        """The arrays of all processes, by rank; they may differ in names and shapes."""
        ...

    def share(self, content: bytes) -> bytes:
        """The content of process 0."""
        ...

    def total(self, shards: dict[int, Updates], block: Block, like: torch.Tensor) -> dict[int, Tensors]:
        """The sum of the updates of all shards of all processes, along the tree over shards.

        All updates have the type and device of `like`, also where this process has none.
        """
        ...


class OneProcess:
    """A run in one process: there is nobody to tell."""

    rank, size = 0, 1

    def gather(self, arrays: Mapping[str, AnyArray]) -> list[Arrays]:
        return [dict(arrays)]

    def share(self, content: bytes) -> bytes:
        return content

    def total(self, shards: dict[int, Updates], block: Block, like: torch.Tensor) -> dict[int, Tensors]:
        count = len(block.bounds) - 1
        return in_order(sum_nodes(shards, count, block.numbers, add_updates)[0, count])


ALONE = OneProcess()


def in_order(updates: Updates) -> Updates:
    """By model: sums over shards have the models in the order in which shards updated them."""
    return dict(sorted(updates.items()))


def own_device(group: Group, name: str | None) -> str:
    """The device of this process: of several on a machine, each has a GPU of its own if there are enough."""
    if name != "cuda" or group.size == 1:
        return name or "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


@contextmanager
def first_on_machine(group: Group) -> Iterator[None]:
    """Within the block, the first process of each machine is before the others: it fills caches for them."""
    local = int(os.environ.get("LOCAL_RANK", str(group.rank)))
    if group.size > 1 and local:
        group.gather({})
    yield
    if group.size > 1 and not local:
        group.gather({})


def gather_rows(group: Group, arrays: Mapping[str, AnyArray], axis: int = 0) -> Arrays:
    """Arrays of all processes, joined along the axis of the clients; those that a process lacks are left out."""
    if group.size == 1:
        return dict(arrays)
    parts = group.gather(arrays)
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([part[name] for part in parts if name in part], axis=axis) for name in names}


class _Head(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


def encode_arrays(arrays: Mapping[str, AnyArray]) -> bytes:
    """Arrays as bytes: what they are, then their content; flags take a bit each."""
    heads = [_Head(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    head = msgspec.msgpack.encode(heads)
    parts = [np.packbits(array) if array.dtype == np.bool_ else array for array in arrays.values()]
    return b"".join([len(head).to_bytes(8, "little"), head, *(np.ascontiguousarray(part).tobytes() for part in parts)])


def decode_arrays(content: bytes) -> Arrays:
    """The inverse of `encode_arrays`.

    >>> decode_arrays(encode_arrays({"a": np.array([[True, False, True]]), "b": np.arange(2)}))
    {'a': array([[ True, False,  True]]), 'b': array([0, 1])}
    """
    start = 8 + int.from_bytes(content[:8], "little")
    arrays: Arrays = {}
    for head in from_msgpack(content[8:start], list[_Head]):
        count, kind = int(np.prod(head.shape)), np.dtype(head.dtype)
        if kind == np.bool_:
            found = np.frombuffer(content, np.uint8, -(-count // 8), start)
            arrays[head.name] = np.unpackbits(found, count=count).astype(np.bool_).reshape(head.shape)
        else:
            found = np.frombuffer(content, kind, count, start)
            arrays[head.name] = found.reshape(head.shape).copy()
        start += found.nbytes
    return arrays
