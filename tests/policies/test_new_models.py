"""Section 14 of docs/theory.md: models that come and go, on every path."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofms.core.new_experts import carry_losses, share_losses
from ofms.policies import late_adahedge, late_changes
from ofms.policies.changes import Adapting, Change
from ofms.policies.late_adahedge import Totals
from ofms.policies.mean_losses import MeanLosses
from tests.policies.late_events import Fleet, Member
from tests.policies.late_hedge_runs import make_stream, runs
from tests.problems import fleet_of, policy_of


def test_a_new_model_has_the_mean_weight_by_hand() -> None:
    """Weights 1 and 1/4 at η = ln 4: the mean 5/8 is exp(-η L)."""
    losses, rates = np.array([[0.0, 1.0]]), np.array([math.log(4)])
    assert share_losses(losses, rates) == pytest.approx([-math.log(5 / 8) / math.log(4)])
    weights = np.exp(-rates * carry_losses(losses, np.array([1, 0, -1, -1]), rates))[0]
    assert weights / weights.sum() == pytest.approx([0.25 / 2.5, 1 / 2.5, 0.25, 0.25])


def test_a_rate_of_zero_is_the_limit() -> None:
    assert share_losses(np.array([[0.0, 1.0, 5.0]]), np.zeros(1)) == pytest.approx([2.0])
    assert share_losses(np.array([[0.0, 1.0, 5.0]]), np.array([1e-9])) == pytest.approx([2.0], abs=1e-6)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 1.0, 5.0]))
def test_the_theorem_holds_on_every_path(seed: int, scale: float) -> None:
    """Σ (h - q(k)) over the rounds of model k, against ln K, retirements and gaps; rates fall."""
    random = np.random.default_rng(seed)
    sums, arrival, eta = np.zeros((1, 3)), [0, 0, 0], 2.0
    mixed: list[float] = []
    gaps: list[float] = []
    own = [0.0] * 3
    price: list[tuple[int, float]] = []
    for step in range(40):
        eta *= random.uniform(0.9, 1.0)
        if random.random() < 0.15:
            sums = carry_losses(sums, np.array([*range(sums.shape[1]), -1]), np.array([eta]))
            arrival.append(step)
            own.append(0.0)
        elif random.random() < 0.15 and sums.shape[1] > 2:
            models, place = sums.shape[1], int(random.integers(sums.shape[1]))
            price.append((step, math.log(models / (models - 1))))
            sums = np.delete(sums, place, axis=1)
            del arrival[place], own[place]
        weights = np.exp(-eta * (sums[0] - sums.min()))
        weights /= weights.sum()
        losses = scale * random.random(sums.shape[1]) * random.integers(0, 2, sums.shape[1])
        mixed.append(float(weights @ losses))
        gaps.append(mixed[-1] + math.log(weights @ np.exp(-eta * losses)) / eta)
        sums = sums + losses
        own = [before + float(loss) for before, loss in zip(own, losses, strict=True)]
    for since, total in zip(arrival, own, strict=True):
        paid = math.log(sums.shape[1]) + sum(cost for step, cost in price if step >= since)
        assert sum(mixed[since:]) - total <= paid / eta + sum(gaps[since:]) + 1e-9


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 4, 12]), st.booleans(), st.sampled_from([1, 3]))
def test_with_late_losses_an_arrival_costs_as_much_as_the_rounds_that_are_open(
    seed: int, delay: int, quiet: bool, members: int
) -> None:
    """On every path: models come and go while up to `delay` rounds are open; losses have a range of 1."""
    random = np.random.default_rng(seed)
    rounds, models = 50, int(random.integers(2, 6))
    losses = random.uniform(-0.5, 0.5, size=(rounds, models + 6))
    if quiet:
        losses *= np.where(random.random((rounds, 1)) < 0.3, 1, 0.01)
    delays = random.integers(0, delay, size=losses.shape)
    members_of = np.array([1.0, 0.9, 0.75][:members])
    fleet, new = Fleet(losses, delays, members_of, [Member(number) for number in range(models)]), models
    for _ in range(rounds):
        fleet.predict()
        if random.random() < 0.12:
            goes = len(fleet.models) > 2 and random.random() < 0.5
            comes = new < losses.shape[1] and (not goes or random.random() < 0.5)
            retired = fleet.models[int(random.integers(len(fleet.models)))].number if goes else None
            fleet.change(retired, new if comes else None)
            new += comes
    fleet.finish()
    assert len(fleet.final) == rounds
    for model in fleet.models:
        assert fleet.regret(model) <= fleet.bound(model) + model.open + 1e-6


def test_with_late_losses_an_arrival_can_cost_nearly_as_much_as_the_rounds_that_are_open() -> None:
    """The new model loses 1 more than others in each open round, and a little less later, when losses are prompt."""
    delay, rounds = 20, 400
    losses, delays = np.zeros((rounds, 4)), np.zeros((rounds, 4), dtype=np.int64)
    losses[:40, 3], losses[40:, 3], delays[:40] = 1, -0.1, delay - 1
    fleet = Fleet(losses, delays, np.ones(1), [Member(number) for number in range(3)])
    for step in range(rounds):
        if step == 40:
            fleet.change(None, 3)
        fleet.predict()
    fleet.finish()
    new = fleet.models[-1]
    assert (new.first, new.open) == (40, delay)
    assert 0.8 * delay <= fleet.regret(new) - fleet.bound(new) <= delay


def test_late_hedging_gives_a_new_model_its_share_in_every_member() -> None:
    random = np.random.default_rng(0)
    losses, rates = random.random((2, 2, 3)), np.array([[0.5, 2.0], [1.0, 3.0]])
    hedge = late_adahedge.Hedge(
        Totals(losses, random.random((2, 2)), np.zeros((2, 2)), np.zeros(2)),
        math.log(3) / rates,
        np.ones(2),
        np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 8.0]]),
        np.array([4, 4]),
    )
    weights = np.full((2, 3), 1 / 3)
    after = late_changes.with_models(hedge, weights, np.array([0, 2, -1]))
    for client in range(2):
        for member in range(2):
            shares = np.exp(-rates[client, member] * after.totals.losses[client, member])
            assert shares[2] / shares.sum() == pytest.approx(1 / 3)
            before = np.exp(-rates[client, member] * losses[client, member])
            assert shares[0] / shares[1] == pytest.approx(before[0] / before[2]), "others keep their proportions"
    assert after.hint_sums == pytest.approx(np.array([[1.0, 4.0, 2.5], [0.0, 8.0, 4.0]]))
    assert after.peaks == pytest.approx(hedge.peaks), "ln K is the same"
    grown = late_changes.with_models(hedge, weights, np.array([0, 1, 2, -1]))
    assert grown.peaks == pytest.approx(math.log(4) / rates), "rates do not rise"
    alone = late_changes.with_models(hedge, np.array([[0.0, 1.0, 0.0]] * 2), np.array([0, 2, -1]))
    assert alone.hint_sums[:, 2].tolist() == [0, 0], "the others had no weight"
    shares = np.exp(-rates[..., None] * grown.totals.losses)
    assert shares[..., 3] / shares.sum(axis=-1) == pytest.approx(np.full((2, 2), 1 / 4)), "beside three others"


# Of three models the second and the third stay, in this order, with a new one between them.
KEPT = np.array([1, -1, 2])


def changed_to(costs: list[int], budgets: list[int]) -> Change:
    after = fleet_of(costs, budgets)
    return Change(after.catalogue, after.budgets, KEPT, same_models=False)


@pytest.mark.parametrize("policy", ["ofms-ft", "non-fed-oms", "b-fed-omft", "budgeted-experts"])
def test_clients_keep_losses_and_give_a_new_model_the_mean_weight(policy: str) -> None:
    """At η = ln 2, losses 3 and 2 are weights 1/8 and 1/4, with the mean 3/16; all else is that of the new fleet."""
    fleet, change = fleet_of([1, 1, 1], [4, 4]), changed_to([1, 2, 1], [5, 4])
    built = policy_of(policy, fleet_of([1, 2, 1], [5, 4]), learning_rate=math.log(2))
    before = policy_of(policy, fleet, learning_rate=math.log(2)).client.start(fleet.catalogue, fleet.budgets)
    before = replace(before, cumulative_losses=np.array([[1.0, 3.0, 2.0], [9.0, 0.0, 0.0]]))
    assert isinstance(built.client, Adapting)
    after, fresh = built.client.adapt(before, change), built.client.start(change.catalogue, change.budgets)
    assert after.cumulative_losses == pytest.approx(np.array([[3.0, -math.log2(3 / 16), 2.0], [0.0, 0.0, 0.0]]))
    for each in fields(fresh):
        if each.name not in ("cumulative_losses", "table"):
            assert np.array_equal(getattr(after, each.name), getattr(fresh, each.name)), each.name


def test_the_server_of_mab_keeps_losses_and_gives_a_new_model_the_mean_weight() -> None:
    fleet = fleet_of([1, 1, 1], [4, 4])
    server: Any = policy_of("mab", fleet, learning_rate=math.log(2)).server
    start = server.start(fleet.catalogue)
    assert (start.pmf.tolist(), start.chosen, start.cumulative_losses.tolist()) == ([1 / 3] * 3, 0, [0] * 3)
    before = replace(start, cumulative_losses=np.array([1.0, 3.0, 2.0]), chosen=2)
    after = server.adapt(before, changed_to([1, 2, 1], [5, 4]))
    assert after.cumulative_losses == pytest.approx(np.array([3.0, -math.log2(3 / 16), 2.0]))
    assert (after.pmf.tolist(), after.chosen) == ([1 / 3] * 3, 0)


def test_the_leader_is_followed_by_what_is_known_of_the_models_that_stay() -> None:
    fleet, change = fleet_of([1, 1, 1], [4]), changed_to([1, 2, 1], [5])
    client: Any = policy_of("follow-the-leader", fleet).client
    before = replace(
        client.start(fleet.catalogue, fleet.budgets),
        losses=MeanLosses(np.array([[4.0, 5.0, 6.0]]), np.array([[1, 2, 3]])),
        last_held=np.array([[7, 8, 9]]),
        chosen=np.array([2]),
    )
    after = client.adapt(before, change)
    assert (after.losses.total.tolist(), after.losses.count.tolist()) == ([[5, 0, 6]], [[2, 0, 3]])
    assert (after.last_held.tolist(), after.chosen.tolist()) == ([[8, -1, 9]], [0])
    assert (after.storage.tolist(), after.budgets.tolist()) == ([1, 2, 1], [5])


def test_exploration_begins_again_with_new_models_and_goes_on_with_new_budgets() -> None:
    """Three models of one byte and three of one, two and one: budgets of two and of three bytes need two bins."""
    fleet = fleet_of([1, 1, 1], [2])
    client: Any = policy_of("explore-then-commit", fleet).client
    before = replace(
        client.start(fleet.catalogue, fleet.budgets),
        losses=MeanLosses(np.array([[4.0, 5.0, 6.0]]), np.array([[1, 2, 3]])),
        exchanges=np.array([7]),
        committed=np.array([True]),
        chosen=np.array([2]),
    )
    assert before.bins.tolist() == [2]
    again = client.adapt(before, changed_to([1, 2, 1], [3]))
    assert (again.losses.total.tolist(), again.losses.count.tolist()) == ([[5, 0, 6]], [[2, 0, 3]])
    assert (again.exchanges.tolist(), again.committed.tolist(), again.chosen.tolist()) == ([0], [False], [0])
    assert again.bins.tolist() == [2]
    on = client.adapt(before, Change(fleet.catalogue, np.array([3]), np.arange(3), same_models=True))
    assert (on.bins.tolist(), on.bin.tolist()) == ([1], [[0, 0, 0]])
    assert (on.exchanges.tolist(), on.committed.tolist(), on.losses) == ([7], [True], before.losses)


def test_late_hedging_keeps_what_it_learnt_of_models_that_stay() -> None:
    """Two clients after five exchanges; the new model was never held, and has no loss in recent exchanges yet."""
    fleet, change = fleet_of([1, 1, 1], [2, 2], rounds=6), changed_to([1, 2, 1], [3, 4])
    *_, last = runs(fleet, *make_stream(2, 6, 3, 1), window=4)
    client, state = policy_of("late-hedge", fleet_of([1, 2, 1], [3, 4]), window=4).client, last.state.policy
    assert isinstance(client, Adapting)
    after = client.adapt(state, change)
    assert (after.costs.tolist(), after.budgets.tolist(), after.exchange) == ([[1, 2, 1]], [3, 4], 6)
    assert after.held.tolist() == [[one, False, two] for _, one, two in state.held.tolist()]
    assert after.last_held.tolist() == [[one, -1, two] for _, one, two in state.last_held.tolist()]
    assert after.last_held.dtype == state.last_held.dtype
    hedge = late_changes.with_models(state.hedge, state.weights, KEPT, share=0.25)
    assert not np.array_equal(
        late_changes.with_models(state.hedge, state.weights, KEPT).totals.losses, hedge.totals.losses
    )
    assert after.ways is state.ways or np.array_equal(after.ways.totals.losses, state.ways.totals.losses)
    assert np.array_equal(after.hedge.totals.losses, hedge.totals.losses)
    assert np.array_equal(after.hedge.hint_sums, hedge.hint_sums)
    expected = state.rounds.with_models(KEPT)
    assert np.array_equal(after.rounds.losses, expected.losses, equal_nan=True)
    assert np.array_equal(after.rounds.members.whole, expected.members.whole)
    assert after.rounds.number.tolist() == state.rounds.number.tolist()
    assert not after.weights.any()
    same = client.adapt(state, Change(fleet.catalogue, np.array([3, 5]), np.arange(3), same_models=True))
    assert same.budgets.tolist() == [3, 5]
    assert (same.hedge, same.rounds, same.weights) == (state.hedge, state.rounds, state.weights)
