"""Weights of models that join a dictionary later, under exponential weights (docs/theory.md, section 14)."""

from __future__ import annotations

import numpy as np

from ofms.core.typing import Floats, Integers


def share_losses(losses: Floats, rates: Floats) -> Floats:
    """[N] the cumulative loss of a model whose weight is the mean of the others', at [N] rates: -1/η ln mean exp(-η L).

    With it, a new model has a share of one over the number of models, and the normalised potential is unchanged.

    >>> share_losses(np.array([[0.0, np.log(3.0)]]), np.array([1.0])).round(6).tolist() == [round(np.log(1.5), 6)]
    True
    """
    least = losses.min(axis=1)
    safe = np.where(rates > 0, rates, 1.0)
    weights = np.exp(-safe[:, None] * (losses - least[:, None]))
    # The last of running sums: the order of additions does not depend on the number of clients.
    mean = np.cumsum(weights, axis=1)[:, -1] / losses.shape[1]
    found: Floats = np.where(rates > 0, least - np.log(mean) / safe, np.cumsum(losses, axis=1)[:, -1] / losses.shape[1])
    return found


def carry_losses(losses: Floats, kept: Integers, rates: Floats) -> Floats:
    """[N, K'] cumulative losses of a changed dictionary.

    Parameters
    ----------
    losses
        [N, K] those of the dictionary before.
    kept
        [K'] the place of each model in the dictionary before; -1 for a new one.
    rates
        [N] η.

    Examples
    --------
    >>> carry_losses(np.array([[5.0, 1.0, 1.0]]), np.array([1, 2, -1]), np.array([0.3])).tolist()
    [[1.0, 1.0, 1.0]]
    """
    carried: Floats = losses[:, np.maximum(kept, 0)]
    new = kept < 0
    if new.any():
        carried[:, new] = share_losses(carried[:, ~new], rates)[:, None]
    return carried
