"""Pack models into bins that each fit a budget."""

from __future__ import annotations

import numpy as np

from ofms.core.messages import Catalogue
from ofms.core.packing import first_fit_decreasing
from ofms.core.typing import Floats, Integers


def pack_bins(catalogue: Catalogue, budgets: Integers) -> tuple[Integers, Integers]:
    """[N, K] the bin of each model for clients with [N] budgets, and [N] R, the number of bins."""
    kinds, kind = np.unique(budgets, return_inverse=True)
    packings = [first_fit_decreasing(catalogue.storage, int(budget)) for budget in kinds]
    place = np.stack([packing.bin for packing in packings])[kind]
    return place, np.array([packing.count for packing in packings])[kind]


def bin_probabilities(pmf: Floats, place: Integers, bins: int) -> Floats:
    """[N, K] the probability that the bin of a model is drawn: the sum over its models.

    >>> bin_probabilities(np.array([[0.5, 0.2, 0.3]]), np.array([[0, 1, 0]]), 2).tolist()
    [[0.8, 0.2, 0.8]]
    """
    rows = np.arange(len(pmf))[:, None] * bins
    total = np.bincount((rows + place).ravel(), weights=pmf.ravel(), minlength=len(pmf) * bins)
    # A bin whose probabilities underflowed to 0 is never drawn; a tiny positive value avoids dividing by 0.
    return np.maximum(np.take_along_axis(total.reshape(len(pmf), bins), place, axis=1), np.finfo(np.float64).tiny)
