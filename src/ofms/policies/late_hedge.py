"""Late hedging: predict with the best mixture of what fits, and learn every model's loss on every sample, late.

A client keeps its last samples. Every model visits its memory while it still has them, so it learns the losses of all
models on all samples, without importance weights. It predicts with the pool of the models that it holds, and learns
from the gradient of the pool's loss. It needs no horizon, no learning rate and no bound on the losses. One model, the
global model, is held by all clients, who fine-tune it together; hedging decides how much each of them uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ofms.core import selection
from ofms.core.draws import ClientDraws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Plan
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.policies import late_adahedge, late_changes, pool_memory
from ofms.policies.blocks import in_blocks
from ofms.policies.changes import Change
from ofms.policies.fleet import Fleet
from ofms.policies.late_adahedge import Hedge
from ofms.policies.late_hedge_settings import LateHedge
from ofms.policies.late_rounds import Rounds
from ofms.policies.local_updates import GradientStep
from ofms.policies.observations import Observations
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.subsets import most_upload
from ofms.policies.tuning_server import TuningServer

# Clients send gradients times this; the server's steps do not depend on it.
_LOCAL_RATE = 0.01


@dataclass(frozen=True)
class _Tuning:
    """Settings that depend on what is fine-tuned, where none are given."""

    every: int
    control_every: int
    square_momentum: float


_GLOBAL, _BY_USE = _Tuning(1, 0, 0.999), _Tuning(6, 60, 0.0)


@dataclass(frozen=True, eq=False)
class State:
    """What a client has learnt, its recent rounds, and what it holds.

    Attributes
    ----------
    costs
        [1, K] the models' storage.
    rounds
        The recent exchanges whose losses are not complete.
    last_held
        [N, K] the last exchange in which a model was held, in the client's own count; -1 for never.
    ways
        The hedge over drawing from the models that do not fit and omitting them.
    weights
        [N, K] p, the models' weights in the current exchange.
    expected
        [N, K] the mean of the prediction weights over the draw.
    """

    costs: Integers
    budgets: Integers
    hedge: Hedge
    ways: Hedge
    rounds: Rounds
    exchange: int
    held: Flags
    last_held: AnyArray
    weights: Floats
    prediction_weights: Floats
    expected: Floats
    inclusion: Floats


@dataclass(frozen=True)
class Client:
    """The client half.

    Parameters
    ----------
    interval
        The number of rounds of an exchange.
    shared
        The global model, which all clients hold and fine-tune; None if there is none.
    """

    settings: LateHedge
    interval: int
    shared: int | None = None

    @property
    def memories(self) -> Floats:
        """[J] γ, by how much a member discounts its losses in an exchange."""
        return np.array(
            [1.0 if length == 0 else (1 - 1 / length) ** self.interval for length in self.settings.memories]
        )

    @property
    def offset_memories(self) -> tuple[float, ...]:
        """γ of the offsets, which are learnt sample by sample."""
        return tuple(1.0 if length == 0 else 1 - 1 / length for length in self.settings.memories)

    @property
    def exchanges(self) -> int:
        """How many exchanges a client keeps the samples of."""
        return max(2, self.settings.window // self.interval)

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        shape = (budgets.size, len(catalogue))
        if self.shared is not None and not 0 <= self.shared < len(catalogue):
            raise InvalidInput("message", f"global model {self.shared}", f"the dictionary has {len(catalogue)} models")
        members = len(self.settings.memories)
        hedge, ways = late_adahedge.start(*shape, members), late_adahedge.start(budgets.size, 2, 1)
        rounds = Rounds.none(*shape, members)
        zeros, never = np.zeros(shape), np.full(shape, -1, dtype=np.int32)
        held = np.zeros(shape, dtype=np.bool_)
        weights = (zeros, zeros, zeros, zeros)
        return State(catalogue.storage[None], budgets, hedge, ways, rounds, 0, held, never, *weights)

    def adapt(self, state: State, change: Change) -> State:
        """Keep what was learnt; new models take part in recent exchanges as some that were not held."""
        if change.same_models:
            return replace(state, budgets=change.budgets)

        def work(some: State, rows: slice | Integers) -> State:
            return replace(
                self.start(change.catalogue, some.budgets),
                hedge=late_changes.with_models(some.hedge, some.weights, change.kept, self.settings.rate),
                ways=some.ways,
                rounds=some.rounds.with_models(change.kept),
                exchange=some.exchange,
                held=change.carried(some.held),
                last_held=change.carried(some.last_held, -1),
            )

        return in_blocks(replace(state, budgets=change.budgets), state.budgets.size, state.rounds.block, work)

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        places = int(state.budgets.max() // state.costs.max()) + 1
        uniform, others = draws.table(Purpose.MODEL, places), draws.table(Purpose.CLUSTER, 2)

        def work(some: State, rows: slice | Integers) -> State:
            return self._select(some, draws.exchange, uniform[rows], others[rows])

        state = in_blocks(state, state.budgets.size, state.rounds.block, work)
        return replace(state, rounds=state.rounds.without_final(), exchange=state.exchange + 1), state.held

    def _select(self, state: State, number: int, uniform: Floats, others: Floats) -> State:
        settings, rounds = self.settings, state.rounds
        expired = max(0, len(rounds) + 1 - self.exchanges)
        hedge, final, weights = late_adahedge.advance(
            state.hedge, rounds.open, self.memories, expired, hints=settings.hints, share=settings.rate
        )
        # A round is final when all models were evaluated on it: then its losses of both ways are.
        ways, _, shares = late_adahedge.advance(
            state.ways, rounds.open_ways, np.ones(1), expired, hints=False, complete=final
        )
        pooled = weights.pooled
        omission = shares.members[:, 0, 1]
        if settings.outside != "hedged":
            omission = np.full(len(pooled), float(settings.outside == "omitted"))
        chosen = pool_memory.choose(
            pooled,
            self._certain(state),
            state.held,
            state.costs[0],
            state.budgets,
            uniform,
            keep=settings.keep,
            omission=omission,
            omitting=others[:, 1] < omission,
        )
        return replace(
            state,
            hedge=hedge,
            ways=ways,
            rounds=rounds.mark(final).add(weights, shares, chosen, number),
            held=chosen.held,
            last_held=np.where(chosen.held, np.int32(state.exchange), state.last_held),
            weights=pooled,
            prediction_weights=chosen.prediction_weights
            if settings.predict == "pool"
            else _one_of(chosen.prediction_weights, others[:, 0]),
            expected=chosen.expected,
            inclusion=chosen.inclusion,
        )

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        weight = np.zeros(state.prediction_weights.shape)
        if self.shared is None:
            # A model's gradient counts as much as the client uses it.
            weight[grants.uploads] = grants.groups * state.prediction_weights[grants.uploads]
        else:
            weight[grants.uploads & grants.held[:, self.shared], self.shared] = grants.groups
        state = replace(state, rounds=state.rounds.granted(grants.exchange))
        return state, Plan(grants.held, state.prediction_weights, state.inclusion, weight)

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        def work(some: Rounds, rows: slice | Integers) -> Rounds:
            return some.observe(seen.recent.of(rows), late=self.settings.late, plain=self.settings.loss == "plain")

        rounds = in_blocks(state.rounds, state.budgets.size, state.rounds.block, work)
        return replace(state, rounds=rounds)

    def _certain(self, state: State) -> Flags:
        """Visitors, and the global model where two others always fit beside it."""
        if self.shared is None:
            return self._visitors(state, state.budgets)
        largest, own = int(state.costs.max()), int(state.costs[0, self.shared])
        roomy = (state.budgets >= own + 2 * largest) & self.settings.hold_global
        certain = self._visitors(state, state.budgets - np.where(roomy, own, 0))
        certain[:, self.shared] |= roomy
        return certain

    def _visitors(self, state: State, budgets: Integers) -> Flags:
        """Every model within the window: one now and then, or several at once if there are few exchanges for it."""
        models = state.costs.shape[1]
        every = self.settings.visit_every or max(1, self.exchanges // models)
        if state.exchange % every:
            return np.zeros(state.held.shape, dtype=np.bool_)
        most = -(-models * every // self.exchanges)
        return pool_memory.longest_away(state.last_held, state.costs[0], budgets, state.exchange, most)


def _one_of(weights: Floats, uniform: Floats) -> Floats:
    return selection.one_hot(selection.draw_model(weights, uniform), weights.shape[1])


def build(settings: LateHedge, fleet: Fleet) -> Policy:
    if not settings.memories or any(length != 0 and length < 2 for length in settings.memories):
        raise InvalidInput("memories", list(settings.memories), "give 0 for all the past, or at least 2 rounds")
    tuned, shared = settings.fine_tuning_rate > 0, settings.chosen_model(fleet.catalogue)
    client = Client(settings, fleet.schedule.interval, shared)
    if shared is not None:
        fleet.require_upload(int(fleet.catalogue.upload[shared]))
    elif tuned:
        fleet.require_upload(most_upload(fleet.catalogue, int(fleet.budgets.max())))
    usual = _BY_USE if shared is None else _GLOBAL
    control_every, squares = settings.control_every, settings.square_momentum
    local = GradientStep(
        rate=_LOCAL_RATE,
        window=settings.window,
        warm_up=settings.warm_up,
        every=settings.tune_every or usual.every,
        objective=settings.objective,
        control_every=usual.control_every if control_every is None else control_every,
    )
    return Policy(
        client=client,
        server=TuningServer(settings.fine_tuning_rate, _LOCAL_RATE, earned=shared is None),
        local=local if tuned else None,
        uploaded=None if shared is None else (shared,),
        reports_use=tuned,
        weighs_by_use=tuned and shared is None,
        momentum=settings.momentum,
        square_momentum=usual.square_momentum if squares is None else squares,
        loss_bound="raw",
        remembers=client.exchanges * client.interval,
        pooling="log",
        offset_memories=client.offset_memories if settings.offset else (),
        expected_weights=lambda client, server: client.expected,
        not_covered="late hedging's bound depends on the losses of the run",
    )


algorithm = Algorithm(LateHedge, Client, build)
