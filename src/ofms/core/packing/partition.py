"""Partitions of the models into clusters that fit the remaining budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core.packing.first_fit import first_fit_decreasing
from ofms.core.typing import Integers


@dataclass(frozen=True)
class PartitionTable:
    """The clusters of every (budget, chosen model).

    Costs and budgets are fixed and first-fit decreasing is deterministic, so all clusters are known before the first
    round.

    Attributes
    ----------
    kind
        [N] the index of each client's budget in `budgets`.
    budgets
        [G] the distinct budgets, ascending.
    cluster
        [G, K, K] `cluster[g, j, k]`: the cluster of model k when model j is chosen; -1 for k = j.
    clusters
        [G, K] the number of clusters m_j when model j is chosen.
    """

    kind: Integers
    budgets: Integers
    cluster: Integers
    clusters: Integers

    def rows(self, clients: slice) -> PartitionTable:
        """The table of a slice of the clients."""
        return replace(self, kind=self.kind[clients])


def partition_models(costs: Integers, budgets: Integers) -> PartitionTable:
    """Partition the models for every distinct budget and every chosen model (alg:6, step 6).

    Examples
    --------
    >>> table = partition_models(np.array([2, 1, 1]), np.array([3, 4, 3]))
    >>> table.cluster[table.kind[1], 0].tolist(), table.clusters[table.kind[1]].tolist()
    ([-1, 0, 0], [1, 1, 1])
    >>> table.clusters[table.kind[0]].tolist()
    [2, 2, 2]
    """
    costs = np.asarray(costs, dtype=np.int64)
    distinct, kind = np.unique(np.asarray(budgets, dtype=np.int64), return_inverse=True)
    models = costs.size
    cluster = np.full((distinct.size, models, models), -1, dtype=np.int64)
    clusters = np.zeros((distinct.size, models), dtype=np.int64)
    for row, budget in enumerate(distinct.tolist()):
        for chosen in range(models):
            others = np.delete(np.arange(models), chosen)
            packing = first_fit_decreasing(costs[others], budget - int(costs[chosen]))
            cluster[row, chosen, others] = packing.bin
            clusters[row, chosen] = packing.count
    return PartitionTable(kind.astype(np.int64), distinct, cluster, clusters)


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
    models = uploads.size
    for row in range(table.budgets.size):
        for chosen in range(models):
            others = np.delete(np.arange(models), chosen)
            sums = np.bincount(table.cluster[row, chosen, others], weights=uploads[others])
            largest = max(largest, int(uploads[chosen] + sums.max(initial=0)))
    return largest
