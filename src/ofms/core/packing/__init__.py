"""Bin packing: models into clusters, clients into upload groups.

Sizes and capacities are integers (bytes), so the result is the same on every machine.
"""

from ofms.core.packing.bin_count import BinCount, fewest_bins, fewest_clusters
from ofms.core.packing.first_fit import Packing, first_fit_decreasing
from ofms.core.packing.partition import PartitionTable, largest_cluster_upload, partition_models, smallest_budget

__all__ = [
    "BinCount",
    "Packing",
    "PartitionTable",
    "fewest_bins",
    "fewest_clusters",
    "first_fit_decreasing",
    "largest_cluster_upload",
    "partition_models",
    "smallest_budget",
]
