"""AdaHedge whose models come and go (docs/theory.md, section 14).

A new model begins with the sum for which its share is one over the number of models, in each member: then the members'
potentials do not change at their latest rates, and do not fall at the higher ones of rounds that are open. The weight
of a retired one goes to the others in proportion.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ofms.core.typing import Floats, Integers
from ofms.policies.exponential_weights import mixed
from ofms.policies.late_adahedge import Hedge, rates_of


def with_models(hedge: Hedge, weights: Floats, kept: Integers, share: float = 1.0) -> Hedge:
    """The hedge of a changed dictionary.

    Parameters
    ----------
    weights
        [N, K] p, the pooled weights before.
    kept
        [K'] the place of each model before; -1 for a new one.
    share
        β, the share of AdaHedge's rate.
    """
    new, place = kept < 0, np.maximum(kept, 0)
    # Clients last: NumPy is fastest along the last axis.
    sums = np.ascontiguousarray(hedge.totals.losses.transpose(1, 2, 0)[:, place])
    hints = np.ascontiguousarray(hedge.hint_sums.T[place])
    if new.any():
        others, rates = np.ascontiguousarray(sums[:, ~new]), np.ascontiguousarray(rates_of(hedge, share).T)
        least = others.min(axis=1)
        sums[:, new] = (mixed(others - least[:, None], least, rates) + math.log(others.shape[1]) / rates)[:, None]
        # As the mixture, until something is known of it.
        shares = np.ascontiguousarray(weights.T[kept[~new]])
        total = shares.sum(axis=0)
        hints[new] = (shares * hints[~new]).sum(axis=0) / np.where(total > 0, total, 1.0)
    totals = replace(hedge.totals, losses=np.ascontiguousarray(sums).transpose(2, 0, 1))
    # Rates only fall, also where ln K grows.
    grown = max(1.0, math.log(kept.size) / math.log(hedge.hint_sums.shape[1]))
    return replace(hedge, totals=totals, peaks=grown * hedge.peaks, hint_sums=np.ascontiguousarray(hints.T))
