"""Regret of a client, or of the server, against the best choice in hindsight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.typing import Flags, Floats


@dataclass(frozen=True)
class ClientRegret:
    """The regret of clients, eq. (10), over the rounds so far.

    R_i = Σ_t ⟨p_t, L_t⟩ - min_k Σ_t L_{t,k}; the best model is the best over the same rounds. Two running sums
    suffice, so that a long run of many clients needs no history.

    Examples
    --------
    >>> regret = ClientRegret.start(clients=1, models=2)
    >>> regret = regret.add(np.array([0.75]), np.array([[0.5, 1.0]]))
    >>> regret = regret.add(np.array([0.75]), np.array([[1.0, 0.0]]))
    >>> regret.value
    array([0.5])
    """

    incurred: Floats
    hindsight: Floats

    @classmethod
    def start(cls, clients: int, models: int) -> ClientRegret:
        return cls(np.zeros(clients), np.zeros((clients, models)))

    def add(self, expected_loss: Floats, losses: Floats) -> ClientRegret:
        """Add a round: [N] the expected loss E_t[L(f_I)] and [N, K] the losses of all models."""
        return ClientRegret(self.incurred + expected_loss, self.hindsight + losses)

    @property
    def value(self) -> Floats:
        """[N] cumulative regret."""
        regret: Floats = self.incurred - self.hindsight.min(axis=1)
        return regret


@dataclass(frozen=True)
class SharedRegret:
    """The regret of clients against models, if either were there for some of the rounds only.

    R_i = max_k Σ_t (⟨p_t, L_t⟩ - L_{t,k}) over the rounds in which client i and model k were both there: each model is
    compared on its own rounds. If all were there throughout, it is that of `ClientRegret`.

    Examples
    --------
    >>> regret = SharedRegret.start(clients=1, models=2)
    >>> regret = regret.add(np.array([0.75]), np.array([[0.5, 1.0]]), np.array([[True, False]]))
    >>> regret = regret.add(np.array([0.75]), np.array([[1.0, 0.25]]), np.array([[True, True]]))
    >>> regret.value
    array([0.5])
    """

    incurred: Floats
    hindsight: Floats

    @classmethod
    def start(cls, clients: int, models: int) -> SharedRegret:
        return cls(np.zeros((clients, models)), np.zeros((clients, models)))

    def add(self, expected_loss: Floats, losses: Floats, both: Flags) -> SharedRegret:
        """Add a round: [N] expected losses, [N, K] losses of all models, and whether client and model were there."""
        incurred = self.incurred + np.where(both, expected_loss[:, None], 0.0)
        return SharedRegret(incurred, self.hindsight + np.where(both, losses, 0.0))

    @property
    def value(self) -> Floats:
        """[N] cumulative regret; 0 before the first round of a client."""
        regret: Floats = (self.incurred - self.hindsight).max(axis=1)
        return regret


def server_regret(losses: Floats, optimal_losses: Floats) -> Floats:
    """The server's regret in fine-tuning, eq. (10r2), after each round.

    Parameters
    ----------
    losses
        [T, N] losses of the fine-tuned model, L(f_k(x_it; θ_kt), y_it).
    optimal_losses
        [T, N] losses of the same model at θ*_k, the best fixed parameters in hindsight.

    Examples
    --------
    >>> server_regret(np.array([[1.0, 0.5], [0.5, 0.5]]), np.array([[0.5, 0.5], [0.5, 0.0]])).tolist()
    [0.25, 0.5]
    """
    return np.cumsum((losses - optimal_losses).mean(axis=1))
