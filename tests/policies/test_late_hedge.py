"""Late hedging of several clients at once against a slow version of one client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants, Plan
from ofms.core.pooling import poolable
from ofms.core.states import flatten
from ofms.policies import late_adahedge, late_rounds
from ofms.policies.late_hedge import Client
from ofms.policies.late_hedge_settings import LateHedge
from ofms.policies.late_rounds import Rounds
from ofms.policies.observations import Samples
from ofms.policies.session import ClientSession
from tests.policies.late_hedge_oracle import OneClient
from tests.policies.late_hedge_runs import make_stream, runs
from tests.problems import fleet_of, policy_of

EQUAL = [1] * 7
MIXED = [20, 7, 9, 13, 20, 11, 5]


def assert_agrees(
    costs: list[int], budgets: list[int], width: int, *, interval: int = 1, rounds: int = 60, **changes: Any
) -> None:
    settings = LateHedge(**{"window": 21, "fine_tuning_rate": 0.0} | changes)
    fleet = fleet_of(costs, budgets, rounds=rounds, interval=interval)
    outputs, targets = make_stream(len(budgets), rounds, len(costs), width)
    poolables = poolable(outputs).astype(np.float32).astype(np.float64)
    shared = settings.chosen_model(fleet.catalogue)
    expected = [OneClient(costs, budget, settings, interval, shared) for budget in budgets]
    given = {name: getattr(settings, name) for name in LateHedge.__dataclass_fields__}
    for found in runs(fleet, outputs, targets, **given):
        uniform = found.draws.table(Purpose.MODEL, np.arange(len(budgets)), max(budgets) // min(costs) + 2)
        choices = found.draws.table(Purpose.CLUSTER, np.arange(len(budgets)), 2)
        stop = fleet.schedule.span(found.draws.exchange)[1]
        for client, one in enumerate(expected):
            one.request(uniform[client], *choices[client].tolist())
            place = f"exchange {found.draws.exchange}, client {client}"
            assert found.state.policy.weights[client] == pytest.approx(one.weights, abs=1e-9), place
            assert set(np.flatnonzero(found.plan.held[client]).tolist()) == one.held, place
            assert found.plan.prediction_weights[client] == pytest.approx(one.vote, abs=1e-9), place
            assert found.state.policy.expected[client] == pytest.approx(one.expected, abs=1e-9), place
            one.learn(poolables[client, :stop], targets[client, :stop].tolist())
    assert min(one.finished for one in expected) > 0, "some exchanges are final"


@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("width", [1, 3], ids=["regression", "classification"])
def test_a_few_exchanges_agree(width: int, interval: int) -> None:
    """Quicker than the longer runs below, for mutation tests: every model has visited, and exchanges are final."""
    assert_agrees([3, 1, 2], [6, 5], width, interval=interval, rounds=8 * interval, window=4 * interval)


@pytest.mark.parametrize("name", ["late", "hints", "keep"])
def test_a_few_exchanges_agree_without_a_part(name: str) -> None:
    assert_agrees([3, 1, 2], [6, 5], 1, rounds=8, window=4, **{name: False})


@pytest.mark.parametrize(
    "changes",
    [
        {"predict": "one"},
        {"loss": "plain"},
        {"visit_every": 1},
        {"memories": (2, 0)},
        {"outside": "drawn"},
        {"outside": "omitted"},
        {"rate": 1.0},
    ],
)
def test_a_few_exchanges_agree_with_other_settings(changes: dict[str, Any]) -> None:
    assert_agrees([3, 1, 2], [6, 5], 1, rounds=8, window=4, **changes)


def test_a_few_exchanges_agree_if_several_models_must_visit_at_once() -> None:
    """Seven models within four exchanges: two at once."""
    assert_agrees(EQUAL, [4, 3], 1, rounds=8, window=4)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("width", [1, 3], ids=["regression", "classification"])
@pytest.mark.parametrize(
    ("costs", "budgets"), [(EQUAL, [2, 3, 5]), (MIXED, [40, 57, 64])], ids=["equal costs", "mixed costs"]
)
def test_clients_together_agree_with_each_alone(
    costs: list[int], budgets: list[int], width: int, interval: int
) -> None:
    assert_agrees(costs, budgets, width, interval=interval, rounds=40 * interval)


@pytest.mark.parametrize(
    "changes",
    [
        {"late": False},
        {"hints": False},
        {"loss": "plain"},
        {"keep": False},
        {"predict": "one"},
        {"visit_every": 1},
        {"memories": (0,)},
        {"memories": (8,)},
        {"outside": "drawn"},
        {"outside": "omitted"},
        {"rate": 1.0},
        {"late": False, "hints": False, "loss": "plain", "keep": False},
    ],
    ids=lambda changes: ", ".join(f"{name} {value}" for name, value in changes.items()),
)
@pytest.mark.parametrize("width", [1, 3], ids=["regression", "classification"])
def test_parts_of_the_method_can_be_turned_off(changes: dict[str, Any], width: int) -> None:
    assert_agrees(MIXED, [40, 50, 64], width, rounds=36, **changes)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize(("costs", "budgets"), [(EQUAL, [2, 3, 5]), (MIXED, [40, 59, 60, 77])], ids=["equal", "mixed"])
def test_clients_that_hold_the_global_model_agree_with_each_alone(
    costs: list[int], budgets: list[int], interval: int
) -> None:
    """By default the first of the largest; 59 is one byte too few for two others beside it."""
    assert_agrees(costs, budgets, 3, interval=interval, rounds=40 * interval, fine_tuning_rate=1.0)
    assert_agrees(costs, budgets, 1, interval=interval, rounds=40 * interval, fine_tuning_rate=1.0, model=2)


def test_a_global_model_that_is_held_like_any_other() -> None:
    assert_agrees(MIXED, [40, 60, 77], 1, rounds=40, fine_tuning_rate=1.0, hold_global=False)
    fleet = fleet_of(MIXED, [77], rounds=40)
    outputs, targets = make_stream(1, 40, len(MIXED), 1)
    given = {"window": 21, "fine_tuning_rate": 1.0, "hold_global": False}
    held = [bool(found.plan.held[0, 0]) for found in runs(fleet, outputs, targets, **given)]
    assert any(held)
    assert not all(held)


@pytest.mark.parametrize("interval", [1, 7])
def test_the_global_model_is_held_in_every_exchange_where_there_is_room(interval: int) -> None:
    """Also if several models visit at once. Its losses are never learnt late, so it does not matter that it moves."""
    budgets = [40, 57, 59, 60, 61, 90]
    fleet, rounds = fleet_of(MIXED, budgets, rounds=20 * interval, interval=interval), 20 * interval
    outputs, targets = make_stream(len(budgets), rounds, len(MIXED), 1)
    for found in runs(fleet, outputs, targets, window=21, fine_tuning_rate=1.0, model=4):
        held = found.plan.held[:, 4]
        assert held[np.array(budgets) >= 60].all()
        assert (found.plan.held @ np.array(MIXED) <= budgets).all()
        predicting = (found.plan.prediction_weights > 0).sum(axis=1)
        assert (predicting[np.array(budgets) >= 60] > 1).all(), "never alone"
        assert (found.state.recent.unseen()[np.array(budgets) >= 60, 4] == 0).all()


def test_every_model_visits_in_time_beside_the_global_one() -> None:
    """Seven models, a visitor in every third exchange: all were held in any 21 successive ones."""
    fleet = fleet_of(EQUAL, [3, 4], rounds=120)
    outputs, targets = make_stream(2, 120, len(EQUAL), 1)
    held = np.stack([found.plan.held for found in runs(fleet, outputs, targets, window=21, fine_tuning_rate=1.0)])
    for first in range(len(held) - 20):
        assert held[first : first + 21].any(axis=0).all()


def test_clients_that_upload_fine_tune_the_global_model_alone() -> None:
    """With weight α, whatever its weight in their predictions."""
    fleet = fleet_of(EQUAL, [3, 2, 5], rounds=4)
    half = policy_of("late-hedge", fleet, model=6).client
    numbers, uploads = np.arange(3), np.array([True, True, False])
    state, held = half.select(half.start(fleet.catalogue, fleet.budgets), Draws(0, 0).of(numbers))
    assert held is not None
    assert held[:, 6].tolist() == [True, False, True], "a memory for two models has no place for it"
    _, plan = half.plan(state, Grants(0, numbers, held, held, None, uploads, 4, fleet.catalogue.version))
    assert plan.update_weight.tolist() == [[0] * 6 + [4], [0] * 7, [0] * 7]


def test_a_global_model_that_is_not_in_the_dictionary_is_refused() -> None:
    """A device has it from a message."""
    fleet = fleet_of(EQUAL, [3], rounds=4)
    for shared in (-1, 7):
        with pytest.raises(InvalidInput, match=rf"^message = global model {shared}: the dictionary has 7 models"):
            Client(LateHedge(), 1, shared).start(fleet.catalogue, fleet.budgets)


def test_few_exchanges_fit_into_the_window() -> None:
    """Several models visit at once; where they do not fit, losses that nobody learnt take a hint."""
    assert_agrees(EQUAL, [2, 3, 5], 1, interval=7, rounds=98)
    assert_agrees(MIXED, [40, 57, 64], 3, interval=5, rounds=80)


def test_all_samples_of_an_exchange_count_even_if_the_window_is_shorter() -> None:
    """Clients that hold all models learn everything at once: how long they keep samples does not matter."""
    fleet = fleet_of([1] * 3, [3, 3], rounds=30, interval=3)
    outputs, targets = make_stream(2, 30, 3, 1)
    short, long = (
        [found.state.policy.weights for found in runs(fleet, outputs, targets, window=window)] for window in (1, 30)
    )
    assert np.stack(short) == pytest.approx(np.stack(long), abs=1e-9)


class OneDevice:
    """A client that is granted what it requests; exchanges may have any number, and any number of samples."""

    def __init__(self, models: int, budget: int, **settings: Any) -> None:
        self.fleet = fleet_of([1] * models, [budget], rounds=1000)
        self.session = ClientSession(policy_of("late-hedge", self.fleet, **settings), self.fleet.schedule)
        self.state = self.session.join(self.fleet.catalogue, self.fleet.budgets, np.arange(1))
        self.outputs, self.targets = make_stream(1, 1000, models, 1)
        self.step = 0

    def exchange(self, number: int, samples: int) -> Plan:
        self.state, requests = self.session.request(self.state, Draws(0, number))
        version, nothing = self.fleet.catalogue.version, np.zeros(1, dtype=np.bool_)
        grants = Grants(number, requests.client, requests.wanted, requests.wanted, None, nothing, 1, version)
        self.state, plan = self.session.plan(self.state, grants)
        new = slice(self.step, self.step + samples)
        some = np.where(plan.held[:, None, :, None], self.outputs[:, new], np.nan)
        added = Samples.of(number, some, self.targets[:, new]) if samples else None
        self.state, _ = self.session.learn(self.state, plan, np.zeros(plan.held.shape), added)
        self.step += samples
        return plan


def test_what_was_learnt_stays_when_samples_are_dropped() -> None:
    """A device may get more labels in an exchange than its interval says, and then keeps fewer exchanges."""
    device = OneDevice(models=4, budget=2, window=8)
    held = [device.exchange(number, samples=10).held[0] for number in range(3)]
    rounds = device.state.policy.rounds
    assert rounds.number.tolist() == [[0, 1, 2]]
    assert (np.isfinite(rounds.open.losses[0]) == np.stack(held)).all()


def test_nothing_is_learnt_from_exchanges_without_labels() -> None:
    """Not from hints either: a device that has no labels for long does not become more and more certain."""
    device = OneDevice(models=4, budget=2, window=8)
    for number in range(20):
        device.exchange(number, samples=1)
    for number in range(20, 40):
        device.exchange(number, samples=0)
    learnt, totals = device.state.policy.weights, device.state.policy.hedge.totals.losses
    for number in range(40, 100):
        device.exchange(number, samples=0)
    assert device.state.policy.hedge.totals.losses.tolist() == totals.tolist()
    assert device.state.policy.weights == pytest.approx(learnt)
    assert device.state.policy.hedge.finished.tolist() == [20]


def test_a_server_may_go_back_to_an_earlier_exchange() -> None:
    """It opens exchanges anew that it has forgotten; samples belong to the new ones."""
    device = OneDevice(models=4, budget=2, window=40)
    for number in (0, 1, 2, 3, 4, 5, 3, 4):
        held = device.exchange(number, samples=1).held[0]
    rounds = device.state.policy.rounds
    assert (np.diff(rounds.number[0]) > 0).all()
    assert rounds.number[0, -1] == 4
    assert (np.isfinite(rounds.open.losses[0, -1]) >= held).all()


@pytest.mark.parametrize("at_once", [1, 5])
def test_rounds_that_are_worked_on_at_once_change_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of([1, 1, 1], [2, 2], rounds=7)
    outputs, targets = make_stream(2, 7, 3, 1)
    *_, whole = runs(fleet, outputs, targets, window=6)
    monkeypatch.setattr(late_adahedge, "_AT_ONCE", at_once)
    monkeypatch.setattr(late_rounds, "_OUTPUTS_AT_ONCE", at_once)
    *_, parts = runs(fleet, outputs, targets, window=6)
    (expected, values), (found, same) = flatten(whole.state), flatten(parts.state)
    assert same == values
    assert all(found[name] == pytest.approx(array, rel=1e-12, nan_ok=True) for name, array in expected.items())


def test_blocks_of_clients_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(EQUAL, [2, 3, 5, 4, 2], rounds=30)
    outputs, targets = make_stream(5, 30, len(EQUAL), 1)
    whole = [found.state for found in runs(fleet, outputs, targets, window=14)]
    monkeypatch.setattr(Rounds, "block", 2)
    for one, other in zip(whole, runs(fleet, outputs, targets, window=14), strict=True):
        (expected, values), (found, same) = flatten(one), flatten(other.state)
        assert same == values
        assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())


@pytest.mark.parametrize("width", [1, 4])
def test_a_client_alone_does_as_among_others(width: int) -> None:
    outputs, targets = make_stream(4, 40, len(EQUAL), width)
    together = runs(fleet_of(EQUAL, [3, 2, 5, 4], rounds=40), outputs, targets, window=14)
    alone = runs(fleet_of(EQUAL, [3], rounds=40), outputs[:1], targets[:1], window=14)
    for one, other in zip(together, alone, strict=True):
        assert one.plan.held[0].tolist() == other.plan.held[0].tolist()
        assert one.plan.prediction_weights[0].tobytes() == other.plan.prediction_weights[0].tobytes()
        assert one.state.policy.weights[0].tobytes() == other.state.policy.weights[0].tobytes()


def test_a_gradient_counts_as_much_as_the_model_is_used() -> None:
    """α times the prediction weight if the client is in the uploading group, else 0."""
    fleet = fleet_of(EQUAL, [3, 2, 5], rounds=4)
    half = policy_of("late-hedge", fleet, fine_tuned="used").client
    numbers, uploads = np.arange(3), np.array([True, False, True])
    state, held = half.select(half.start(fleet.catalogue, fleet.budgets), Draws(0, 0).of(numbers))
    assert held is not None
    _, plan = half.plan(state, Grants(0, numbers, held, held, None, uploads, 4, fleet.catalogue.version))
    assert plan.update_weight[uploads] == pytest.approx(4 * plan.prediction_weights[uploads])
    assert plan.prediction_weights.sum(axis=1) == pytest.approx(1)
    assert not plan.update_weight[~uploads].any()


def test_states_that_were_passed_in_are_not_modified() -> None:
    """Rounds share arrays: what a later one learns or appends must not show in an earlier state."""
    fleet = fleet_of(EQUAL, [3, 2, 5], rounds=30)
    outputs, targets = make_stream(3, 30, len(EQUAL), 1)
    kept = []
    for found in runs(fleet, outputs, targets, window=14):
        arrays = flatten(found.state)[0]
        kept.append((found.state, {name: array.tobytes() for name, array in arrays.items()}))
    for state, before in kept:
        assert {name: array.tobytes() for name, array in flatten(state)[0].items()} == before


@pytest.mark.parametrize(("every", "visitors"), [(1, 1), (2, 2), (4, 3)])
def test_rarer_visits_are_of_more_models_at_once(every: int, visitors: int) -> None:
    """Three models within a window of four exchanges."""
    fleet = fleet_of([1, 1, 1], [6], rounds=40)
    client: Any = policy_of("late-hedge", fleet, window=4, visit_every=every, fine_tuning_rate=0).client
    state = replace(client.start(fleet.catalogue, fleet.budgets), exchange=4)
    assert client._visitors(state, state.budgets).sum() == visitors
    assert client._visitors(replace(state, exchange=5), state.budgets).any() == (every == 1)
