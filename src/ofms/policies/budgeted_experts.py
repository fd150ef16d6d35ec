"""Budgeted expert advice: exponential weights over models that are packed into bins, one bin observed at a time.

The models are packed once into R bins that each fit the budget. A client draws a model from its weights, holds all
models of its bin, and predicts with the drawn one or with the weighted mean of the bin. A bin is drawn with the summed
probability of its models, by which the observed losses are divided: Σ p/q = R, hence a regret of O(√(R T ln K)) without
exploration, where R is about C/B for models of total cost C. Clients learn independently; nothing is fine-tuned.

References
----------
K. Amin, S. Kale, G. Tesauro, D. Turaga, "Budgeted Prediction With Expert Advice", AAAI 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ofms.core import selection
from ofms.core.declared import Doc
from ofms.core.draws import ClientDraws, Purpose
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.new_experts import carry_losses
from ofms.core.rates import resolve_rate
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.bins import bin_probabilities, pack_bins
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.observations import Observations
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.rates import RateByBudget, rates_of
from ofms.policies.settings import LossBound, TunedRate

Prediction = Literal["one", "mean"]


@dataclass(frozen=True)
class BudgetedExperts:
    """Settings of budgeted expert advice."""

    learning_rate: Annotated[
        TunedRate, Doc("η, the learning rate of exponential weights.", "tuned, for R bins: √(2 ln K/(R n T))")
    ] = "tuned"
    prediction: Annotated[
        Prediction, Doc("one: predict with the drawn model; mean: with the mean of its bin, weighted by probability.")
    ] = "one"
    loss_bound: LossBound = "clip"


@dataclass(frozen=True, eq=False)
class State:
    """[N, K] bins, cumulative loss estimates, and the draw of the current exchange."""

    bin: Integers
    bins: Integers
    learning_rate: Floats
    cumulative_losses: Floats
    pmf: Floats
    chosen: Integers
    inclusion: Floats


@dataclass(frozen=True)
class Client:
    """Draw a model, observe its bin, learn."""

    rates: RateByBudget
    prediction: Prediction

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        place, bins = pack_bins(catalogue, budgets)
        shape, chosen = (budgets.size, len(catalogue)), np.zeros(budgets.size, dtype=np.int64)
        rates, pmf = rates_of(self.rates, budgets), np.full(shape, 1.0 / shape[1])
        return State(place, bins, rates, np.zeros(shape), pmf, chosen, np.ones(shape))

    def adapt(self, state: State, change: Change) -> State:
        fresh = self.start(change.catalogue, change.budgets)
        losses = carry_losses(state.cumulative_losses, change.kept, fresh.learning_rate)
        return replace(fresh, cumulative_losses=losses)

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        pmf = selection.probabilities(state.cumulative_losses, state.learning_rate)
        chosen = selection.draw_model(pmf, draws.uniform(Purpose.MODEL))
        wanted = state.bin == np.take_along_axis(state.bin, chosen[:, None], axis=1)
        inclusion = bin_probabilities(pmf, state.bin, int(state.bins.max(initial=1)))
        return replace(state, pmf=pmf, chosen=chosen, inclusion=inclusion), wanted

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        if self.prediction == "mean":
            prediction_weights = np.where(grants.held, state.pmf / state.inclusion, 0.0)
        else:
            prediction_weights = selection.one_hot(state.chosen, state.pmf.shape[1])
        return state, Plan(grants.held, prediction_weights, state.inclusion, np.zeros(prediction_weights.shape))

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        estimates = selection.loss_estimates(seen.losses, plan.held, plan.inclusion)
        return replace(state, cumulative_losses=selection.update_weights(state.cumulative_losses, estimates))


def build(settings: BudgetedExperts, fleet: Fleet) -> Policy:
    _, bins = pack_bins(fleet.catalogue, fleet.budgets)
    by_budget: RateByBudget = {}
    for budget, count in zip(fleet.budgets.tolist(), bins.tolist(), strict=True):
        if budget not in by_budget:
            by_budget[budget] = _learning_rate(settings.learning_rate, fleet, count)
    rates = rates_of(by_budget, fleet.budgets)
    bound, not_covered = None, ""
    mixes = settings.prediction == "mean"
    if mixes:
        not_covered = "it predicts with a mean, whose bounded loss is not convex; the theorem is for the drawn model"
    elif settings.loss_bound == "raw":
        not_covered = "the selection loss is not bounded"
    elif rates.min() == 0:
        not_covered = "a learning rate of 0 never learns"
    elif fleet.schedule.rounds is None:
        not_covered = "there is no horizon"
    else:
        bound = math.log(len(fleet.catalogue)) / rates + rates * bins * fleet.horizon / 2
    return Policy(
        client=Client(by_budget, settings.prediction),
        server=GrantingServer(),
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.pmf,
        mixes=mixes,
        bound=bound,
        not_covered=not_covered,
    )


def _learning_rate(rate: TunedRate, fleet: Fleet, bins: int) -> float:
    """η as a number; `tuned` is √(2 ln K/(m n T)) for m bins."""
    models, rounds = len(fleet.catalogue), fleet.schedule.rounds
    return resolve_rate(
        "learning_rate", rate, rounds=rounds, tuned=lambda: math.sqrt(2 * math.log(models) / (bins * fleet.horizon))
    )


algorithm = Algorithm(BudgetedExperts, Client, build)
