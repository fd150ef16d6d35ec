"""Partitions of the models into clusters that fit the remaining budget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ofms.core.packing.all_but_one import Packed, pack_all_but_one
from ofms.core.packing.first_fit import first_fit_decreasing
from ofms.core.states import Derived
from ofms.core.typing import AnyArray, Integers

# Memory for clusters that were computed before; where those of all models do not fit, they are computed when drawn.
_MOST_BYTES = 8_000_000


@dataclass(frozen=True)
class PartitionTable(Derived):
    """The clusters of every (budget, chosen model).

    Costs and budgets are fixed and first-fit decreasing is deterministic, so all clusters are known before the first
    round. Their numbers are computed at once; which models are in a cluster, when the model is chosen.

    Attributes
    ----------
    kind
        [N] the index of each client's budget in `budgets`.
    budgets
        [G] the distinct budgets, ascending.
    costs
        [K] the models' costs.
    clusters
        [G, K] the number of clusters m_j when model j is chosen.
    """

    kind: Integers
    budgets: Integers
    costs: Integers
    clusters: Integers

    def cluster(self, kind: Integers, chosen: Integers) -> AnyArray:
        """[M, K] the cluster of each model for M budgets (by their index) and chosen models; -1 for the chosen one.

        >>> partition_models(np.array([2, 1, 1]), np.array([4])).cluster(np.array([0]), np.array([0])).tolist()
        [[-1, 0, 0]]
        """
        pair, memo = kind * self.costs.size + chosen, self._memo
        if memo is None:
            distinct, place = np.unique(pair, return_inverse=True)
            found: AnyArray = np.stack([self._pack(each) for each in distinct.tolist()])[place]
            return found
        packed, known = memo
        if not known[pair].all():
            for each in np.unique(pair[~known[pair]]).tolist():
                packed[each], known[each] = self._pack(each), True
        rows: AnyArray = packed[pair]
        return rows

    @cached_property
    def _memo(self) -> tuple[AnyArray, AnyArray] | None:
        """[G · K, K] clusters that were computed before, and [G · K] which of them; None if they are too many."""
        shape = (self.clusters.size, self.costs.size)
        if np.prod(shape, dtype=np.float64) * self._dtype.itemsize > _MOST_BYTES:
            return None
        return np.empty(shape, dtype=self._dtype), np.zeros(shape[0], dtype=np.bool_)

    @property
    def _dtype(self) -> np.dtype[np.signedinteger]:
        return np.dtype(np.int16 if self.costs.size < 2**15 else np.int32)

    def _pack(self, pair: int) -> AnyArray:
        kind, chosen = divmod(pair, self.costs.size)
        others = np.arange(self.costs.size) != chosen
        cluster = np.full(self.costs.size, -1, dtype=self._dtype)
        room = int(self.budgets[kind] - self.costs[chosen])
        cluster[others] = first_fit_decreasing(self.costs[others], room).bin
        return cluster


def partition_models(costs: Integers, budgets: Integers) -> PartitionTable:
    """Partition the models for every distinct budget and every chosen model (alg:6, step 6).

    Examples
    --------
    >>> table = partition_models(np.array([2, 1, 1]), np.array([3, 4, 3]))
    >>> table.clusters[table.kind[1]].tolist(), table.clusters[table.kind[0]].tolist()
    ([1, 1, 1], [2, 2, 2])
    """
    costs = np.asarray(costs, dtype=np.int64)
    distinct, kind = np.unique(np.asarray(budgets, dtype=np.int64), return_inverse=True)
    clusters = np.stack([cluster_counts(costs, budget) for budget in distinct.tolist()])
    return PartitionTable(kind.astype(np.int64), distinct, costs, clusters)


def cluster_counts(costs: Integers, budget: int) -> Integers:
    """[K] m_j, the number of clusters when model j is chosen.

    >>> cluster_counts(np.array([2, 1, 1]), 3).tolist()
    [2, 2, 2]
    """
    return _packed(costs, costs, budget).bins


def smallest_budget(costs: Integers) -> int:
    """The smallest budget that satisfies (a2): the two largest models together.

    >>> smallest_budget(np.array([3, 9, 5]))
    14
    """
    return int(np.sort(costs)[-2:].sum())


def largest_cluster_upload(uploads: Integers, table: PartitionTable) -> int:
    """The largest upload over all sets of models that a client can draw.

    >>> table = partition_models(np.array([2, 1, 1]), np.array([3]))
    >>> largest_cluster_upload(np.array([2, 1, 1]), table)
    3
    """
    largest = 0
    for budget in table.budgets.tolist():
        largest = max(largest, int((uploads + _packed(table.costs, uploads, budget).heaviest).max()))
    return largest


def _packed(costs: Integers, weights: Integers, budget: int) -> Packed:
    """The partitions for each chosen model; the last ones are kept, because several figures of a policy need them."""
    return _packed_bytes(*(np.asarray(each, dtype=np.int64).tobytes() for each in (costs, weights)), budget)


@lru_cache(maxsize=4)
def _packed_bytes(costs_bytes: bytes, weights_bytes: bytes, budget: int) -> Packed:
    costs, weights = (np.frombuffer(each, dtype=np.int64) for each in (costs_bytes, weights_bytes))
    distinct, first, place = np.unique(costs, return_index=True, return_inverse=True)
    if (weights != weights[first][place]).any():
        # Without one of several models of equal cost, the weights of bins depend on which of them it is.
        distinct, first, place = costs, np.arange(costs.size), np.arange(costs.size)
    return Packed(*(part[place] for part in pack_all_but_one(costs, first, budget - distinct, weights)))
