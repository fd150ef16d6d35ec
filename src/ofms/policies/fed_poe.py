"""Fed-POE: a model fine-tuned by the client alone, mixed with the federated one and with stored ones.

From the authors' code: a client fine-tunes a local model by itself, and all clients fine-tune a federated one; it mixes
the two with weights a, b. It draws M stored models with replacement, by weights w, and mixes them. Both mixtures are
mixed with weights c, d. Weights decay as exp(-η loss), with the loss of a drawn model over 1 - (1 - p)^M. M is what the
memory holds besides the local and the federated model.

Choices: this is Fed-POE over a dictionary. The paper's stored models are snapshots of the federated one, taken every n
rounds; here the server has K models: `model` is the federated one, a copy of `local_model` the local one, and the K - 2
others are the stored ones; there are no snapshots. All parameters are fine-tuned, there the last layer alone, and
regression is as classification, where theirs has three random-feature kernels and stores nothing. M counts memory in
the largest stored model, so that every draw fits. The loss of a mixture is its models' weighted mean loss, an upper
bound by convexity. Parameters change once in an exchange. docs/deviations.md lists all differences.

References
----------
P. M. Ghari, Y. Shen, "Personalized Federated Learning with Mixture of Models for Adaptive Prediction and Model
Fine-Tuning", NeurIPS 2024; code: github.com/pouyamghari/Fed-POE. Default rates and `window` as there for images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ofms.core.declared import Doc
from ofms.core.draws import ClientDraws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.new_experts import carry_losses
from ofms.core.rates import resolve_rate
from ofms.core.selection import importance_weights, loss_estimates
from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.granting_server import GrantingServer
from ofms.policies.local_updates import GradientStep
from ofms.policies.mixtures import draw_with_replacement, hedge_weights, mean_loss
from ofms.policies.observations import Observations
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import LossBound, ModelName, Rate, WarmUp, Window
from ofms.policies.single_model_server import find_model


@dataclass(frozen=True)
class FedPOE:
    """Settings of Fed-POE."""

    model: Annotated[ModelName, Doc("The federated model, which all clients fine-tune together.")] = 0
    local_model: Annotated[ModelName, Doc("The model of which every client fine-tunes a copy by itself.")] = 1
    learning_rate: Annotated[Rate, Doc("η, the learning rate of the weights of mixtures.", "w ← w e^(-η L)")] = (
        "1/sqrt(T)"
    )
    fine_tuning_rate: Annotated[Rate, Doc("The step size of both fine-tuned models; 0 freezes them.")] = "0.01/sqrt(T)"
    window: Window = 10
    warm_up: WarmUp = 0
    loss_bound: LossBound = "raw"


@dataclass(frozen=True, eq=False)
class State:
    """[N] M; [N, K] cumulative losses (a, b, w), [N, 2] of the mixtures (c, d), and the draw of the exchange."""

    trials: Integers
    model_losses: Floats
    mixture_losses: Floats
    inclusion: Floats
    prediction_weights: Floats


@dataclass(frozen=True)
class Client:
    """Draw stored models, mix, learn; `federated` and `local` are indices."""

    rate: float
    federated: int
    local: int

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        zeros, stored = np.zeros((budgets.size, len(catalogue))), self._stored(len(catalogue))
        room = budgets - catalogue.storage[~stored].sum()
        trials = room // catalogue.storage.max(where=stored, initial=1) * stored.any()
        return State(trials, zeros, np.zeros((budgets.size, 2)), zeros + 1, zeros + ~stored / 2)

    def adapt(self, state: State, change: Change) -> State:
        fresh = self.start(change.catalogue, change.budgets)
        losses = carry_losses(state.model_losses, change.kept, np.full(change.budgets.size, self.rate))
        return replace(fresh, model_losses=losses, mixture_losses=state.mixture_losses)

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        stored = np.broadcast_to(self._stored(state.inclusion.shape[1]), state.inclusion.shape)
        pmf = hedge_weights(state.model_losses, self.rate, stored)
        uniform = draws.table(Purpose.MODEL, max(1, int(state.trials.max(initial=0))))
        drawn, inclusion = draw_with_replacement(pmf, uniform, state.trials)
        return replace(state, inclusion=np.where(stored, inclusion, 1.0)), drawn | ~stored

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        held, stored = grants.held, self._stored(grants.held.shape[1])
        pair, drawn = (hedge_weights(state.model_losses, self.rate, held & side) for side in (~stored, stored))
        present = np.stack([pair.any(axis=1), drawn.any(axis=1)], axis=1)
        shares = hedge_weights(state.mixture_losses, self.rate, present)
        weights = shares[:, :1] * pair + shares[:, 1:] * drawn
        uploaded = held & (np.arange(held.shape[1]) == self.federated)
        update_weight = importance_weights(uploaded, np.ones(held.shape), grants.uploads, grants.groups)
        return replace(state, prediction_weights=weights), Plan(held, weights, state.inclusion, update_weight)

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        stored = self._stored(plan.held.shape[1])
        mixed = [mean_loss(seen.losses, plan.prediction_weights, plan.held & side) for side in (~stored, stored)]
        models = state.model_losses + loss_estimates(seen.losses, plan.held, plan.inclusion)
        return replace(state, model_losses=models, mixture_losses=state.mixture_losses + np.stack(mixed, axis=1))

    def _stored(self, models: int) -> Flags:
        return ~np.isin(np.arange(models), [self.federated, self.local])


def build(settings: FedPOE, fleet: Fleet) -> Policy:
    federated, local = (find_model(fleet.catalogue, each) for each in (settings.model, settings.local_model))
    if federated == local:
        raise InvalidInput("local_model", settings.local_model, "it is the federated model; name another one")
    fleet.require_upload(int(fleet.catalogue.upload[federated]))
    rounds = fleet.schedule.rounds
    rate = resolve_rate("fine_tuning_rate", settings.fine_tuning_rate, rounds=rounds)
    return Policy(
        client=Client(resolve_rate("learning_rate", settings.learning_rate, rounds=rounds), federated, local),
        server=GrantingServer(server_step=1),
        local=GradientStep(rate, settings.window, settings.warm_up),
        own_model=local,
        mixes=True,
        uploaded=(federated,),
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, server: client.prediction_weights,
        not_covered="its theorem is for its own mixture, not for the best model of a dictionary",
    )


algorithm = Algorithm(FedPOE, Client, build)
