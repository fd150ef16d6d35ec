"""Regret and recovery of clients whose data change: against the best model of each phase between two changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import Floats


@dataclass(frozen=True, eq=False)
class PhaseComparator:
    """[N] the loss of each client's best models, one per phase: Σ_s min_k Σ_{t ∈ s} L_{t,k} over the phases s.

    The dynamic regret of a client is its summed expected loss less this. Two running sums suffice: `closed` [N] of the
    phases before, `phase` [N, K] of the current one.

    Examples
    --------
    >>> comparator = PhaseComparator.start(clients=1, models=2)
    >>> comparator = comparator.add(np.array([[1.0, 3.0]])).next_phase().add(np.array([[4.0, 2.0]]))
    >>> comparator.value
    array([3.])

    References
    ----------
    M. Herbster, M. Warmuth, "Tracking the best expert", Machine Learning 32, 1998.
    """

    closed: Floats
    phase: Floats

    @classmethod
    def start(cls, clients: int, models: int) -> PhaseComparator:
        return cls(np.zeros(clients), np.zeros((clients, models)))

    def add(self, losses: Floats) -> PhaseComparator:
        """Add a round of the current phase: [N, K] the losses of all models."""
        return PhaseComparator(self.closed, self.phase + losses)

    def next_phase(self) -> PhaseComparator:
        """Close the current phase."""
        return PhaseComparator(self.value, np.zeros_like(self.phase))

    @property
    def value(self) -> Floats:
        """[N] the loss over the rounds so far."""
        value: Floats = self.closed + self.phase.min(axis=1)
        return value


def rounds_until_recovered(losses: Floats, limit: Floats, window: int) -> Floats:
    """[N] rounds of a phase before the first `window` consecutive rounds with a mean loss of at most `limit`.

    All rounds of the phase if there are none; a phase that is shorter than the window is one window.

    Parameters
    ----------
    losses
        [N, n] losses, or anything of which less is better, in the rounds of the phase.
    limit
        [N] what a client must reach.

    Examples
    --------
    >>> losses = np.array([[3.0, 1.0, 1.0, 9.0], [0.0, 0.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]])
    >>> rounds_until_recovered(losses, np.array([1.0, 1.0, 1.0]), window=2).tolist()
    [1.0, 0.0, 4.0]
    """
    rounds = losses.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(losses, min(window, rounds), axis=1)
    within = windows.mean(axis=2) <= limit[:, None]
    waited: Floats = np.where(within.any(axis=1), within.argmax(axis=1), rounds).astype(np.float64)
    return waited
