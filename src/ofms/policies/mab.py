"""MAB: one Exp3 over all models, run by the server; its choice goes to every client. No fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ofms.core import selection
from ofms.core.declared import Doc
from ofms.core.draws import Draws, Purpose
from ofms.core.messages import Catalogue, Reports
from ofms.core.new_experts import carry_losses
from ofms.core.rates import resolve_rate
from ofms.core.typing import Flags, Floats
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.follower_client import FollowerClient
from ofms.policies.protocol import Algorithm, Policy, SummedUpdates
from ofms.policies.settings import Exploration, LossBound, TunedRate


@dataclass(frozen=True)
class MAB:
    """Settings of MAB, which the paper leaves open."""

    learning_rate: Annotated[TunedRate, Doc("η, the learning rate of Exp3.", "tuned: √(2 ln K/(K n T))")] = "tuned"
    exploration: Exploration = 0.0
    loss_bound: LossBound = "clip"


@dataclass(frozen=True, eq=False)
class State:
    """[K] cumulative loss estimates, the PMF, and the model drawn from it."""

    cumulative_losses: Floats
    pmf: Floats
    chosen: int = 0


@dataclass(frozen=True)
class Server:
    """Draw a model, grant it to all clients, learn from their mean loss by Exp3."""

    learning_rate: float
    exploration: float

    def start(self, catalogue: Catalogue) -> State:
        models = len(catalogue)
        return State(np.zeros(models), np.full(models, 1.0 / models))

    def adapt(self, state: State, change: Change) -> State:
        losses = carry_losses(state.cumulative_losses[None], change.kept, np.array([self.learning_rate]))[0]
        return replace(self.start(change.catalogue), cumulative_losses=losses)

    def grant(self, state: State, wanted: Flags, draws: Draws) -> tuple[State, Flags, Floats]:
        weights = selection.probabilities(state.cumulative_losses[None], np.array([self.learning_rate]))[0]
        pmf = (1 - self.exploration) * weights + self.exploration / weights.size
        chosen = selection.draw_model(pmf[None], np.array([draws.single(Purpose.MODEL)]))
        prediction_weights = np.tile(selection.one_hot(chosen, pmf.size), (len(wanted), 1))
        return replace(state, pmf=pmf, chosen=int(chosen[0])), prediction_weights > 0, prediction_weights

    def learn(self, state: State, reports: Reports, summed: SummedUpdates) -> tuple[State, float]:
        if reports.losses is None:
            raise ValueError("MAB's server learns from reported losses; the reports have none")
        mean = reports.losses[:, state.chosen].mean()
        if summed.awaited:
            # The mean over all clients; those that are awaited add their shares when they report.
            mean *= len(reports.losses) / (len(reports.losses) + summed.awaited)
        return self._add(state, state, mean), 0.0

    def learn_late(self, state: State, then: State, reports: Reports, clients: int) -> State:
        if reports.losses is None:
            raise ValueError("MAB's server learns from reported losses; the reports have none")
        return self._add(state, then, reports.losses[:, then.chosen].sum() / clients)

    def _add(self, state: State, then: State, loss: float) -> State:
        """Add the estimate from a loss of the model that was drawn then, with its probability of then."""
        estimates = np.zeros(then.pmf.size)
        estimates[then.chosen] = loss / then.pmf[then.chosen]
        return replace(state, cumulative_losses=selection.update_weights(state.cumulative_losses, estimates))


def build(settings: MAB, fleet: Fleet) -> Policy:
    models = len(fleet.catalogue)
    rate = resolve_rate(
        "learning_rate",
        settings.learning_rate,
        rounds=fleet.schedule.rounds,
        tuned=lambda: math.sqrt(2 * math.log(models) / (models * fleet.horizon)),
    )
    return Policy(
        client=FollowerClient(),
        server=Server(rate, settings.exploration),
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: server.pmf[None],
        reports_losses=True,
    )


algorithm = Algorithm(MAB, FollowerClient, build)
