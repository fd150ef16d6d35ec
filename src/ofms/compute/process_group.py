"""Processes of one run over `torch.distributed`: gloo between processors, nccl between GPUs.

Started by `torchrun`, or by `ofms run --processes`, which sets the same variables.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ofms.compute.group import ALONE, Arrays, Group, decode_arrays, encode_arrays, in_order
from ofms.compute.protocol import Tensors
from ofms.compute.shards import Block, Node, children, joins, sum_nodes
from ofms.compute.updates import Updates, add_updates
from ofms.core.environment import seconds, whole_number
from ofms.core.errors import InvalidInput, PeerEnded, ProcessEnded, one_line
from ofms.core.typing import AnyArray
from ofms.storage.typed import from_json

# Other processes may pre-train a dictionary meanwhile; that of a process which ends closes its connections at once.
_LONGEST_WAIT = timedelta(days=7)
_JOIN_SECONDS = 120.0
# What gloo and nccl say of a process that ended, and of a connection that broke for any reason.
_ENDED = re.compile(r"closed by peer|reset by peer|broken pipe", re.IGNORECASE)
_BROKEN = re.compile(
    r"timed out|timeout|no route|unreachable|connection refused|socket closed|remote process exited", re.IGNORECASE
)
_log = logging.getLogger(__name__)
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ProcessGroup:
    """The processes that `torch.distributed` has connected."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, arrays: Mapping[str, AnyArray]) -> list[Arrays]:
        content = torch.frombuffer(bytearray(encode_arrays(arrays)), dtype=torch.uint8)
        with _connected():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(content)]))
            most = max(int(size) for size in sizes)
            room = torch.zeros(self.size, most, dtype=torch.uint8)
            padded = torch.nn.functional.pad(content, (0, most - len(content)))
            dist.all_gather(list(room), padded)
        return [decode_arrays(row[: int(size)].numpy().tobytes()) for row, size in zip(room, sizes, strict=True)]

    def share(self, content: bytes) -> bytes:
        with _connected():
            size = torch.tensor([len(content)])
            dist.broadcast(size, 0)
            given = content if self.rank == 0 else bytes(int(size))
            room = torch.frombuffer(bytearray(given) or bytearray(1), dtype=torch.uint8)
            dist.broadcast(room, 0)
        return room.numpy().tobytes()[: int(size)]

    def total(self, shards: dict[int, Updates], block: Block, like: torch.Tensor) -> dict[int, Tensors]:
        count = len(block.bounds) - 1
        sums = sum_nodes(shards, count, block.numbers, add_updates)
        layouts = self._layouts(sums)
        blocks = [Block.of(block.total, count, rank, self.size).numbers for rank in range(self.size)]
        with _connected():
            for join in joins(count, blocks):
                left, right = children(join.node)
                layouts[join.node] = layouts[left] | layouts[right]
                if join.source != join.target:
                    if self.rank == join.source:
                        dist.send(_flat(sums.pop(right), layouts[right], like), join.target)
                    elif self.rank == join.target:
                        room = like.new_empty(_length(layouts[right]))
                        dist.recv(room, join.source)
                        sums[right] = _unflat(room, layouts[right])
                if self.rank == join.target:
                    sums[join.node] = add_updates(sums.pop(left), sums.pop(right))
            layout = layouts[0, count]
            whole = _flat(sums[0, count], layout, like) if self.rank == 0 else like.new_empty(_length(layout))
            if whole.numel():
                dist.broadcast(whole, 0)
        return in_order(_unflat(whole, layout))

    def _layouts(self, sums: Mapping[Node, Updates]) -> dict[Node, Layout]:
        """The models and shapes in the sums of all processes, by node."""
        own = [
            (
                node,
                [(model, name, tuple(part.shape)) for model, update in each.items() for name, part in update.items()],
            )
            for node, each in sums.items()
        ]
        parts = self.gather({"layouts": np.frombuffer(msgspec.json.encode(own), np.uint8)})
        found: dict[Node, Layout] = {}
        for part in parts:
            for node, entries in from_json(part["layouts"].tobytes(), _Layouts):
                found[node] = {(model, name): shape for model, name, shape in entries}
        return found


Layout = dict[tuple[int, str], tuple[int, ...]]
_Layouts = list[tuple[tuple[int, int], list[tuple[int, str, tuple[int, ...]]]]]


def join_group() -> Group:
    """Join the processes of `torchrun`; a process that was started alone is alone."""
    if whole_number("WORLD_SIZE", 1) < 2:
        return ALONE
    for name in _VARIABLES:
        if not os.environ.get(name):
            raise InvalidInput(name, "", "it is not set; start the processes with torchrun, or give --processes")
    for name in ("RANK", "MASTER_PORT"):
        whole_number(name, 0)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    longest = seconds("OFMS_JOIN_SECONDS", _JOIN_SECONDS)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=longest)))
        store.set_timeout(timedelta(seconds=longest))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_LONGEST_WAIT)
    except (RuntimeError, ValueError, OSError) as error:
        raise InvalidInput("MASTER_ADDR:MASTER_PORT", address, _reason(str(error), longest)) from None
    return ProcessGroup()


def leave_group() -> None:
    """Close the connections once all processes are ready to."""
    if dist.is_initialized():
        with _connected():
            dist.barrier()
        dist.destroy_process_group()


def _reason(error: str, seconds: float) -> str:
    if "EADDRINUSE" in error or "in use" in error:
        return "the port is in use; give another one (torchrun --master-port)"
    if "imeout" in error or "timed out" in error or "imed out" in error:
        return f"not all processes could connect to it within {seconds:g} s; check address, firewall and their number"
    return f"cannot connect to it ({error.splitlines()[0]}); check the address"


@contextmanager
def _connected() -> Iterator[None]:
    """An error of the connection as one line; others as they are."""
    try:
        yield
    except RuntimeError as error:
        if _ENDED.search(str(error)):
            _log.debug("%s", error)
            raise PeerEnded("another process of the run ended") from None
        if _BROKEN.search(str(error)):
            raise ProcessEnded(f"the connection to another process of the run broke: {one_line(str(error))}") from None
        raise


def _length(layout: Layout) -> int:
    return sum(int(np.prod(shape)) for shape in layout.values())


def _flat(updates: Updates, layout: Layout, like: torch.Tensor) -> torch.Tensor:
    parts = [updates[model][name].reshape(-1) for model, name in layout]
    return torch.cat(parts) if parts else like


def _unflat(whole: torch.Tensor, layout: Layout) -> Updates:
    updates: Updates = {}
    parts = whole.split([int(np.prod(shape)) for shape in layout.values()])
    for ((model, name), shape), part in zip(layout.items(), parts, strict=True):
        updates.setdefault(model, {})[name] = part.view(shape)
    return updates
