"""The client half of policies in which every client runs Exp3 over a fixed subset of models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ofms.core import selection
from ofms.core.draws import ClientDraws, Purpose
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.new_experts import carry_losses
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.changes import Change
from ofms.policies.exp3 import Exp3
from ofms.policies.observations import Observations
from ofms.policies.subsets import Subset, fixed_subset, random_subset

GradientWeight = Literal["one", "use"]


@dataclass(frozen=True, eq=False)
class State:
    """[N, K] cumulative loss estimates, requested models, and the draw of the current exchange."""

    storage: Integers
    budgets: Integers
    cumulative_losses: Floats
    wanted: Flags
    uniform: Floats
    pmf: Floats


@dataclass(frozen=True)
class Exp3Client:
    """Request its own `subset`, or nothing if the server decides; choose among the granted models by Exp3.

    A held model's gradient has weight `one`, or by `use` the probability that it predicts.
    """

    rule: Exp3
    subset: Subset | None = None
    gradient_weight: GradientWeight = "one"

    @property
    def observes(self) -> Literal["held", "predicting"]:
        """With bandit feedback only the loss of the chosen model is observed."""
        return "held" if self.rule.feedback == "all" else "predicting"

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        shape = (budgets.size, len(catalogue))
        fixed = None if self.subset is None else fixed_subset(self.subset, catalogue, budgets)
        return State(
            storage=catalogue.storage,
            budgets=budgets,
            cumulative_losses=np.zeros(shape),
            wanted=np.zeros(shape, dtype=np.bool_) if fixed is None else fixed,
            uniform=np.zeros(budgets.size),
            pmf=np.full(shape, 1.0 / shape[1]),
        )

    def adapt(self, state: State, change: Change) -> State:
        fresh = self.start(change.catalogue, change.budgets)
        rates = self.rule.rates(np.full(change.budgets.size, len(change.catalogue)))
        return replace(fresh, cumulative_losses=carry_losses(state.cumulative_losses, change.kept, rates))

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        wanted = state.wanted
        if self.subset == "random":
            wanted = random_subset(state.storage, state.budgets, draws)
        return replace(state, uniform=draws.uniform(Purpose.MODEL)), wanted

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        pmf = self.rule.probabilities(state.cumulative_losses, grants.held)
        chosen = selection.one_hot(selection.draw_model(pmf, state.uniform), pmf.shape[1])
        prediction = pmf if self.gradient_weight == "use" else np.ones(pmf.shape)
        weight = selection.use_weights(grants.held, prediction, np.ones(pmf.shape), grants.uploads, grants.groups)
        return replace(state, pmf=pmf), Plan(grants.held, chosen, pmf, weight)

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        # From the plan, not the state: a label may arrive after the next choice.
        estimates = self.rule.estimates(seen.losses, plan.prediction_weights.argmax(axis=1), plan.inclusion, plan.held)
        return replace(state, cumulative_losses=selection.update_weights(state.cumulative_losses, estimates))
