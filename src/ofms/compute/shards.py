"""Virtual shards: consecutive clients that are computed together, whichever process owns them.

The last bits of a network's outputs depend on which samples are computed together, and those of a sum on its order. So
samples are batched within a shard, and updates are summed within each shard and then along a fixed binary tree over
shards. The number of shards does not depend on the number of processes, hence neither do the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Integers

T = TypeVar("T")

MOST_BY_DEFAULT = 8
# An image takes so long to compute that small batches cost little; with vectors, starting a kernel takes longer.
_IMAGE_CLIENTS, _VECTOR_CLIENTS = 5, 25
# NumPy adds in another order along an axis that is alone, so a client alone would get other bits.
_LEAST_CLIENTS = 2


def shard_count(clients: int, given: int | None, *, images: bool) -> int:
    """The number of shards: the given one, or by the number of clients, at most eight.

    >>> shard_count(50, None, images=True), shard_count(50, None, images=False), shard_count(50, 4, images=False)
    (8, 2, 4)
    """
    if given is None:
        return max(1, min(MOST_BY_DEFAULT, clients // (_IMAGE_CLIENTS if images else _VECTOR_CLIENTS)))
    most = most_shards(clients)
    if not 1 <= given <= most:
        raise InvalidInput("shards", given, f"a shard has at least {_LEAST_CLIENTS} clients; give 1 to {most}")
    return given


def most_shards(clients: int) -> int:
    """The largest number of shards that so many clients can have."""
    return max(1, clients // _LEAST_CLIENTS)


@dataclass(frozen=True)
class Block:
    """The shards `first` to `stop` - 1 of one process, of [S + 1] `bounds`: the first client of each shard.

    Examples
    --------
    >>> block = Block.of(clients=10, shards=4, rank=1, ranks=2)
    >>> block.clients, block.numbers, [rows.tolist() for _, rows in block.shards]
    ((5, 10), range(2, 4), [[0, 1], [2, 3, 4]])
    """

    bounds: tuple[int, ...]
    first: int
    stop: int

    @classmethod
    def of(cls, clients: int, shards: int, rank: int = 0, ranks: int = 1) -> Block:
        """The block of one of several processes, which differ by at most one shard."""
        bounds = tuple(clients * shard // shards for shard in range(shards + 1))
        return cls(bounds, shards * rank // ranks, shards * (rank + 1) // ranks)

    @property
    def numbers(self) -> range:
        """The numbers of its shards."""
        return range(self.first, self.stop)

    @property
    def clients(self) -> tuple[int, int]:
        """The first of its clients, and the first client after them."""
        return self.bounds[self.first], self.bounds[self.stop]

    @property
    def size(self) -> int:
        return self.clients[1] - self.clients[0]

    @property
    def total(self) -> int:
        """The number of clients of all processes."""
        return self.bounds[-1]

    @property
    def is_whole(self) -> bool:
        """Whether it has all clients."""
        return self.size == self.total

    @cached_property
    def shards(self) -> list[tuple[int, Integers]]:
        """The number of each shard, and the rows of its clients among those of the block."""
        start = self.clients[0]
        return [
            (shard, np.arange(self.bounds[shard] - start, self.bounds[shard + 1] - start)) for shard in self.numbers
        ]


Node = tuple[int, int]


def tree_nodes(shards: int) -> list[Node]:
    """The inner nodes of the tree over shards, children before parents: the shards from .. to of each.

    >>> tree_nodes(4)
    [(0, 2), (2, 4), (0, 4)]
    """

    def below(first: int, stop: int) -> list[Node]:
        if stop - first < 2:
            return []
        middle = middle_of((first, stop))
        return [*below(first, middle), *below(middle, stop), (first, stop)]

    return sorted(below(0, shards), key=lambda node: (node[1] - node[0], node))


def middle_of(node: Node) -> int:
    """The first shard of a node's second child."""
    return (node[0] + node[1] + 1) // 2


def sum_nodes(leaves: Mapping[int, T], shards: int, numbers: range, add: Callable[[T, T], T]) -> dict[Node, T]:
    """The sums of the largest nodes whose shards are all among `numbers`, from those of single shards."""
    sums = {(shard, shard + 1): leaves[shard] for shard in numbers}
    for node in tree_nodes(shards):
        left, right = children(node)
        if left in sums and right in sums:
            sums[node] = add(sums.pop(left), sums.pop(right))
    return sums


def children(node: Node) -> tuple[Node, Node]:
    """The two halves of a node."""
    middle = middle_of(node)
    return (node[0], middle), (middle, node[1])


@dataclass(frozen=True)
class Join:
    """A node of which one process has the first half; it gets the second one from the process that has that."""

    node: Node
    source: int
    target: int


def joins(shards: int, blocks: Sequence[range]) -> list[Join]:
    """The nodes that no process has all shards of, children before parents; process 0 gets the sum over all.

    >>> joins(4, [range(0, 2), range(2, 4)])
    [Join(node=(0, 4), source=1, target=0)]
    """
    owner = {(shard, shard + 1): rank for rank, numbers in enumerate(blocks) for shard in numbers}
    found = []
    for node in tree_nodes(shards):
        left, right = children(node)
        owner[node] = owner[left]
        if not any(node[0] in numbers and node[1] - 1 in numbers for numbers in blocks):
            found.append(Join(node, owner[right], owner[left]))
    return found
