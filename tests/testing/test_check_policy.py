"""The conformance suite catches each kind of mistake that a policy can make, and says which."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.policies import (
    Algorithm,
    Catalogue,
    ClientDraws,
    Flags,
    Fleet,
    Floats,
    GrantingServer,
    Grants,
    Integers,
    Observations,
    Plan,
    Policy,
    Share,
    fill_budgets,
    one_hot,
)
from ofms.testing import check_policy, random_fleet


@dataclass(frozen=True)
class Settings:
    share: Share = 0.5


@dataclass(frozen=True, eq=False)
class State:
    storage: Integers
    budgets: Integers
    losses: Floats


@dataclass(frozen=True)
class Client:
    """A correct client: it holds what fits in the order of summed losses, and predicts with the first of it."""

    share: float = 0.5

    def start(self, catalogue: Catalogue, budgets: Integers) -> State:
        return State(catalogue.storage, budgets, np.zeros((budgets.size, len(catalogue))))

    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        return state, fill_budgets(state.losses, state.storage, state.budgets)

    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        chosen = np.where(grants.held, state.losses, np.inf).argmin(axis=1)
        shape = grants.held.shape
        return state, Plan(grants.held, one_hot(chosen, shape[1]), np.ones(shape), np.zeros(shape))

    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        return replace(state, losses=state.losses + np.where(plan.held, np.nan_to_num(seen.losses), 0))


def algorithm_of(client: type[Client], **given: object) -> Algorithm:
    def build(settings: Settings, fleet: Fleet) -> Policy:
        return Policy(
            client=client(settings.share),
            server=GrantingServer(),
            loss_bound="raw",
            expected_weights=lambda state, server: one_hot(state.losses.argmin(axis=1), state.losses.shape[1]),
            **given,  # type: ignore[arg-type]
        )

    return Algorithm(Settings, client, build)


def test_a_correct_policy_passes_and_what_was_checked_is_listed() -> None:
    found = check_policy(algorithm_of(Client), Settings(0.2), fleets=3)
    assert len(found) == 7
    assert len(check_policy(algorithm_of(Client), fleets=1, models_change=False)) == 6


class Greedy(Client):
    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        return state, np.ones(state.losses.shape, dtype=np.bool_)


class OwnRandomness(Client):
    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        priority = np.random.default_rng().random(state.losses.shape)
        return state, fill_budgets(priority, state.storage, state.budgets)


class LooksAtOthers(Client):
    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        row = np.arange(len(state.losses))[:, None] + np.arange(state.losses.shape[1])
        return state, fill_budgets((row % 3).astype(np.float64), state.storage, state.budgets)


class InPlace(Client):
    def select(self, state: State, draws: ClientDraws) -> tuple[State, Flags]:
        state.losses[:] += 1
        return super().select(state, draws)


class HalfWeights(Client):
    def plan(self, state: State, grants: Grants) -> tuple[State, Plan]:
        state, plan = super().plan(state, grants)
        return state, replace(plan, prediction_weights=plan.prediction_weights / 2)


class LearnsWhatItDidNotSee(Client):
    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        return replace(state, losses=state.losses + np.nan_to_num(seen.losses, nan=7.0))


class NotPlain(Client):
    def __init__(self, share: float) -> None:
        object.__setattr__(self, "share", np.array([share]))


class LearnsAtRandom(Client):
    def learn(self, state: State, plan: Plan, seen: Observations) -> State:
        return replace(state, losses=state.losses + np.nan_to_num(seen.losses) * np.random.default_rng().random())


@pytest.mark.parametrize(
    ("client", "given", "message"),
    [
        (Greedy, {}, r"Every exchange.*more than its budget.*\(models of \["),
        (OwnRandomness, {}, "random numbers from the draws|alone than among"),
        (LooksAtOthers, {}, "alone than among others"),
        (InPlace, {}, "changed the state that it was given"),
        (HalfWeights, {}, "sum to 0.5, not to 1"),
        (LearnsWhatItDidNotSee, {"observes": "predicting"}, "losses that it does not observe"),
        (NotPlain, {}, "plain values"),
        (LearnsAtRandom, {}, "same seed gave another run"),
    ],
)
def test_a_mistake_is_found_and_named(client: type[Client], given: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_policy(algorithm_of(client, **given))


def test_invalid_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="share = 2"):
        check_policy(algorithm_of(Client), Settings(2.0))


def test_fleets_have_memory_for_the_two_largest_models() -> None:
    for seed in range(50):
        fleet = random_fleet(np.random.default_rng(seed))
        assert fleet.budgets.min() >= 2 * fleet.catalogue.storage.max()
        assert fleet.bandwidth >= fleet.budgets.max()


def test_it_needs_no_pytorch() -> None:
    program = "import sys, ofms.testing as t; t.check_policy('mab', fleets=1); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
