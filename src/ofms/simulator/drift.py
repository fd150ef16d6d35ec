"""Figures of a run on a stream that drifts: dynamic regret, and the rounds until clients recover from a change."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.compute.group import ALONE, Group, gather_rows
from ofms.core.dynamic_regret import PhaseComparator, rounds_until_recovered
from ofms.core.selection_loss import selection_loss
from ofms.core.typing import AnyArray, Floats
from ofms.simulator.exchange import Exchange

# Recovered: the mean of this many rounds is as good as the phase's best model is over the phase, up to a tolerance of
# five points of accuracy, or of a quarter of its squared error.
RECOVERY_WINDOW = 10
_POINTS, _SHARE = 0.05, 0.25


class DriftMeasurement:
    """Accumulate exchanges phase by phase.

    Parameters
    ----------
    rounds
        Total number of rounds.
    changes
        The rounds in which a new phase begins.
    group, first
        As in `Measurement`.
    """

    def __init__(
        self,
        clients: int,
        models: int,
        rounds: int,
        changes: tuple[int, ...],
        *,
        metric: str,
        loss_bound: str,
        group: Group = ALONE,
        first: int = 0,
    ) -> None:
        self._group, self._own = group, slice(first, first + clients)
        self.metric, self.loss_bound = metric, loss_bound
        self._ends = (*changes, rounds)
        self.comparator = PhaseComparator.start(clients, models)
        self.rounds = 0
        self.model_errors = np.zeros((clients, models))
        self._errors: list[Floats] = []
        self._levels: list[Floats] = []
        self._recovery: list[Floats] = []

    def add(self, exchange: Exchange) -> None:
        """Add an exchange with the losses of all models."""
        losses = selection_loss(exchange.losses, self.loss_bound)
        for step in range(exchange.span[1] - exchange.span[0]):
            # A model that has diverged is not the best one.
            self.comparator = self.comparator.add(np.where(np.isnan(losses[:, step]), np.inf, losses[:, step]))
            errors = self._error(exchange.model_scores[:, step])
            self.model_errors = self.model_errors + np.where(np.isnan(errors), np.inf, errors)
            self._errors.append(self._error(exchange.scores[:, step]))
            self.rounds += 1
            if self.rounds in self._ends:
                self._close_phase()

    def per_client(self, incurred: Floats) -> dict[str, AnyArray]:
        """Arrays with a leading client axis after the last round.

        [N] `dynamic_regret`; [N, S] `phase_best`, the score of the best model of each phase; [N, S - 1] `recovery`, the
        rounds until recovered after each change.

        Parameters
        ----------
        incurred
            [N] the summed expected loss, of this process's clients.
        """
        own = {
            "dynamic_regret": incurred - self.comparator.value,
            "phase_best": self._error(np.stack(self._levels, axis=1)),
            "recovery": np.stack(self._recovery[1:], axis=1),
        }
        return gather_rows(self._group, own)

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """The state so far, as arrays and values."""
        arrays = {"closed": self.comparator.closed, "phase": self.comparator.phase, "model_errors": self.model_errors}
        by_round = (("errors", self._errors), ("levels", self._levels), ("recovery", self._recovery))
        kept = {name: np.stack(each) for name, each in by_round if each}
        whole = gather_rows(self._group, arrays) | gather_rows(self._group, kept, axis=1)
        return whole, {"rounds": self.rounds}

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        """Continue from flattened arrays and values."""
        phase = arrays["phase"][self._own]
        if phase.shape != self.comparator.phase.shape:
            raise ValueError(f"phase has shape {list(arrays['phase'].shape)}")
        self.comparator = PhaseComparator(arrays["closed"][self._own], phase)
        self.model_errors = arrays["model_errors"][self._own]
        self._errors, self._levels, self._recovery = (
            list(arrays[name][:, self._own]) if name in arrays else [] for name in ("errors", "levels", "recovery")
        )
        self.rounds = int(values["rounds"])

    def _close_phase(self) -> None:
        level = self.model_errors.min(axis=1) / len(self._errors)
        limit = level + _POINTS if self.metric == "accuracy" else level * (1 + _SHARE)
        self._levels.append(level)
        self._recovery.append(rounds_until_recovered(np.stack(self._errors, axis=1), limit, RECOVERY_WINDOW))
        self.comparator = self.comparator.next_phase()
        self.model_errors = np.zeros_like(self.model_errors)
        self._errors = []

    def _error(self, scores: Floats) -> Floats:
        """Scores as errors, and back: of accuracy its complement."""
        return 1 - scores if self.metric == "accuracy" else scores
