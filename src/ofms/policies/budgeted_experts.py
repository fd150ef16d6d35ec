"""Budgeted expert advice: exponential weights over models that are packed into bins, one bin observed at a time.

The models are packed once into R bins that each fit the budget. A client draws a model from its weights, holds all
models of its bin, and predicts with the drawn one, or with the weighted mean of the bin. A bin is held with the
probability that its models have together, by which the observed losses are divided: Σ p/q = R, from which a regret of
O(√(R T ln K)) follows without exploration, and R is about C/B where all models cost C together. Clients learn alone,
and nothing is fine-tuned: it is what selection under a budget comes to without a federation.

References
----------
K. Amin, S. Kale, G. Tesauro, D. Turaga, "Budgeted Prediction With Expert Advice", AAAI 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core import selection
from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan, Reports, Requests
from ofms.core.packing import first_fit_decreasing
from ofms.core.rates import resolve_rate
from ofms.core.schedule import Schedule
from ofms.core.typing import Floats, Integers
from ofms.policies.granting_server import GrantingServer
from ofms.policies.protocol import Algorithm, Fleet, Policy, require_budgets, require_common_settings, versions_held


@dataclass(frozen=True)
class Settings:
    """Its open settings.

    Attributes
    ----------
    learning_rate
        η: a number, a number over √T, or `tuned` for √(2 ln K/(R n T)).
    prediction
        With `one` model, the drawn one, or with the `mean` of its bin, weighted as they are drawn.
    loss_bound
        As in OFMS-FT.
    """

    learning_rate: float | str = "tuned"
    prediction: Literal["one", "mean"] = "one"
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client remembers: its weights, its bins, what it drew for the coming exchange, and what it holds."""

    client: Integers
    bin: Integers
    bins: Integers
    learning_rate: Floats
    cumulative_losses: Floats
    pmf: Floats
    chosen: Integers
    inclusion: Floats
    holding: Integers
    exchange: int = 0


@dataclass(frozen=True)
class Client:
    """Draw, observe, learn; alone."""

    learning_rate: float | str
    prediction: str
    schedule: Schedule

    def join(self, catalogue: Catalogue, budgets: Integers, clients: Integers) -> ClientState:
        require_budgets(catalogue, budgets)
        place, bins = pack_bins(catalogue, budgets)
        shape = (clients.size, len(catalogue))
        rates = [_rate(self.learning_rate, len(catalogue), count, self.schedule) for count in bins.tolist()]
        return ClientState(
            client=clients,
            bin=place,
            bins=bins,
            learning_rate=np.array(rates),
            cumulative_losses=np.zeros(shape),
            pmf=np.full(shape, 1.0 / shape[1]),
            chosen=np.zeros(clients.size, dtype=np.int64),
            inclusion=np.ones(shape),
            holding=np.full(shape, -1),
        )

    def request(self, state: ClientState, draws: Draws) -> tuple[ClientState, Requests]:
        pmf = selection.probabilities(state.cumulative_losses, state.learning_rate)
        chosen = selection.draw_model(pmf, draws.uniform(Purpose.MODEL, state.client))
        wanted = state.bin == np.take_along_axis(state.bin, chosen[:, None], axis=1)
        inclusion = bin_probabilities(pmf, state.bin, int(state.bins.max(initial=1)))
        state = replace(state, pmf=pmf, chosen=chosen, inclusion=inclusion, exchange=draws.exchange)
        return state, Requests(draws.exchange, state.client, wanted, state.holding)

    def plan(self, state: ClientState, grants: Grants) -> tuple[ClientState, Plan]:
        if self.prediction == "mean":
            prediction_weights = np.where(grants.held, state.pmf / state.inclusion, 0.0)
        else:
            prediction_weights = (np.arange(state.pmf.shape[1]) == state.chosen[:, None]).astype(np.float64)
        state = replace(state, holding=versions_held(grants.held, grants.version))
        return state, Plan(grants.held, prediction_weights, state.inclusion, np.zeros(prediction_weights.shape))

    def learn(self, state: ClientState, plan: Plan, losses: Floats) -> tuple[ClientState, Reports]:
        estimates = selection.loss_estimates(losses, plan.held, plan.inclusion)
        cumulative = selection.update_weights(state.cumulative_losses, estimates)
        reports = Reports(state.exchange, state.client, None, np.zeros(plan.held.shape, dtype=np.bool_))
        return replace(state, cumulative_losses=cumulative), reports


def pack_bins(catalogue: Catalogue, budgets: Integers) -> tuple[Integers, Integers]:
    """[N, K] the bin of each model for clients of some budgets, and [N] how many there are."""
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
    # Of a bin whose models have come to nothing it is 0, and it is never drawn; a division must still be one.
    return np.maximum(np.take_along_axis(total.reshape(len(pmf), bins), place, axis=1), np.finfo(np.float64).tiny)


def build(settings: Settings, fleet: Fleet) -> Policy:
    """Budgeted expert advice for a fleet."""
    require_budgets(fleet.catalogue, fleet.budgets)
    require_common_settings(settings.loss_bound)
    if settings.prediction not in ("one", "mean"):
        raise InvalidInput("prediction", settings.prediction, "use one or mean")
    models, schedule = len(fleet.catalogue), fleet.schedule
    _, bins = pack_bins(fleet.catalogue, fleet.budgets)
    rates = np.array([_rate(settings.learning_rate, models, count, schedule) for count in bins.tolist()])
    bound, not_covered = None, ""
    if settings.loss_bound == "raw":
        not_covered = "the selection loss is not bounded"
    elif rates.min() == 0:
        not_covered = "a learning rate of 0 never learns"
    else:
        bound = math.log(models) / rates + rates * bins * schedule.interval * schedule.rounds / 2
    return Policy(
        name="budgeted-experts",
        client=Client(settings.learning_rate, settings.prediction, schedule),
        server=GrantingServer(None),
        local=None,
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.pmf,
        bound=bound,
        not_covered=not_covered,
    )


def _rate(learning_rate: float | str, models: int, bins: int, schedule: Schedule) -> float:
    tuned = math.sqrt(2 * math.log(models) / (bins * schedule.interval * schedule.rounds))
    return resolve_rate("learning_rate", learning_rate, rounds=schedule.rounds, tuned=tuned)


algorithm = Algorithm(Settings, Client, build)
