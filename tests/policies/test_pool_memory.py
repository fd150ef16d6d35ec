"""What clients of late hedging hold: budgets, the mean of prediction weights, inclusion probabilities, visitors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ofms.core.typing import Flags, Floats, Integers
from ofms.policies.pool_memory import Held, choose, longest_away
from tests.policies.hedging import lay_out
from tests.policies.late_hedge_runs import make_stream, runs
from tests.problems import fleet_of

DRAWS = 4000


def least_budget(costs: Integers) -> int:
    """The two largest models, (a2)."""
    return int(np.sort(costs)[-2:].sum())


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Integers, int]:
    """Weights, from equal ones to nearly one model alone; costs; and a budget that satisfies (a2)."""
    costs = np.array(draw(st.lists(st.integers(1, 9), min_size=2, max_size=8)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = np.exp(draw(st.sampled_from([0.0, 1.0, 4.0, 40.0])) * random.normal(size=costs.size))
    return weights / weights.sum(), costs, least_budget(costs) + draw(st.integers(0, 25))


def choose_often(
    weights: Floats,
    costs: Integers,
    budget: int,
    visitors: list[int],
    before: Flags,
    *,
    omission: float = 0.0,
) -> Held:
    """The same choice for many clients, with other draws; each column of them covers [0, 1) evenly."""
    random = np.random.default_rng(0)
    places = budget // int(costs.min()) + 2
    uniform = np.stack([(random.permutation(DRAWS) + random.random(DRAWS)) / DRAWS for _ in range(places)], axis=1)
    visiting = np.tile(np.isin(np.arange(costs.size), visitors), (DRAWS, 1))
    return choose(
        np.tile(weights, (DRAWS, 1)),
        visiting,
        np.tile(before, (DRAWS, 1)),
        costs,
        np.full(DRAWS, budget),
        np.minimum(uniform, np.nextafter(1, 0)),
        keep=True,
        omission=np.full(DRAWS, omission),
        omitting=random.permutation(DRAWS) < omission * DRAWS,
    )


def choose_once(weights: list[float], budget: int, uniform: list[float]) -> Held:
    """The choice of one client with models of cost 1, no visitors, and nothing held before."""
    nothing = np.zeros((1, len(weights)), dtype=np.bool_)
    costs = np.ones(len(weights), dtype=np.int64)
    given_draws = np.array([uniform])
    return choose(np.array([weights]), nothing, nothing, costs, np.array([budget]), given_draws, keep=True)


@pytest.mark.parametrize(("uniform", "drawn"), [(0.49, 2), (0.51, 3), (0.83, 3), (0.84, 4)])
def test_one_place_for_a_draw_by_hand(uniform: float, drawn: int) -> None:
    """Two models are certain; the others, of 0.3 together, are drawn with probability 1/2, 1/3 and 1/6."""
    found = choose_once([0.5, 0.2, 0.15, 0.1, 0.05], 3, [uniform, 0.0, 0.0, 0.0])
    assert found.inclusion[0] == pytest.approx([1, 1, 1 / 2, 1 / 3, 1 / 6])
    assert found.prediction_weights[0] == pytest.approx([0.5, 0.2, *(0.3 * (np.arange(2, 5) == drawn))])
    assert found.outside[0] == pytest.approx(0.3)


def test_omission_in_a_quarter_of_the_cases_by_hand() -> None:
    """Without a draw, three models fit; with one, the third has its place in half of the cases."""
    weights, nothing, omission = np.array([[0.5, 0.2, 0.15, 0.1, 0.05]]), np.zeros((1, 5), dtype=np.bool_), 0.25
    given_draws, costs = np.array([[0.51, 0.0, 0.0, 0.0]]), np.ones(5, dtype=np.int64)
    for omits in (False, True):
        found = choose(
            *(weights, nothing, nothing, costs, np.array([3]), given_draws),
            keep=True,
            omission=np.array([omission]),
            omitting=np.array([omits]),
        )
        share = np.array([0.5, 0.2, 0.15, 0, 0]) / 0.85
        assert found.prediction_weights[0] == pytest.approx(share if omits else [0.5, 0.2, 0, 0.3, 0])
        assert np.flatnonzero(found.held[0]).tolist() == ([0, 1, 2] if omits else [0, 1, 3])
        assert found.expected[0] == pytest.approx(0.75 * weights[0] + 0.25 * share)
        assert found.inclusion[0] == pytest.approx([1, 1, 0.75 / 2 + 0.25, 0.75 / 3, 0.75 / 6])


def test_several_places_for_draws_by_hand() -> None:
    """Seven equal models in three places: each covers 3/7 of a place, the third and the fifth parts of two."""
    found = choose_once([1 / 7] * 7, 3, [0.9, 0.2, 0.5, 0.0])
    third = 1 - (6 / 7) * (5 / 7)
    assert found.inclusion[0] == pytest.approx([3 / 7, 3 / 7, third, 3 / 7, third, 3 / 7, 3 / 7])
    # Places end at 7/3, 14/3 and 7 models: 0.9 of the first is in the third model, 0.2 and 0.5 in the third and sixth.
    assert found.prediction_weights[0] == pytest.approx(np.array([0, 0, 2, 0, 0, 1, 0]) / 3)


def test_several_places_beside_a_certain_model_by_hand() -> None:
    """0.6 outside is more than one of three places should stand for: two are drawn, for 0.3 each."""
    found = choose_once([0.4, *[0.1] * 6], 3, [0.5, 0.9, 0.0, 0.0])
    assert found.prediction_weights[0] == pytest.approx([0.4, 0, 0.3, 0, 0, 0, 0.3])
    assert found.inclusion[0] == pytest.approx([1, *[1 / 3] * 6])


def test_nothing_is_drawn_if_only_rounding_is_outside() -> None:
    weights = [0.7, 0.2, 0.1, 0.0, 0.0]
    assert 0 < 1 - sum(weights) < 1e-15
    found = choose_once(weights, 4, [0.0, 0.0, 0.0, 0.0])
    assert (found.outside[0], found.inclusion[0].tolist()) == (0, [1, 1, 1, 0, 0])


def test_nothing_is_drawn_if_everything_fits() -> None:
    found = choose_once([0.6, 0.2, 0.1, 0.06, 0.04], 5, [0.0] * 7)
    assert found.outside[0] == 0
    assert found.certain.all()
    assert found.prediction_weights[0] == pytest.approx([0.6, 0.2, 0.1, 0.06, 0.04])


def test_a_draw_that_rounding_leaves_without_a_model_is_of_the_last_one_with_a_weight() -> None:
    """The cumulative weights end below 1, and the number is above them."""
    random, last = np.random.default_rng(0), np.nextafter(1, 0)
    met = 0
    for _ in range(200):
        others = random.random(5) * 0.2
        weights = [1 - others.sum(), *others, 0.0]
        inside = max(weights)
        shares = np.array(weights[1:]) * (1 / (1 - inside))
        total = 0.0
        for share in shares:
            total += share
        met += total <= last
        found = choose_once(weights, 2, [last, last, 0.0])
        assert found.prediction_weights[0].sum() == pytest.approx(1)
        if found.outside[0] > 0 and found.certain[0, 0]:
            assert found.prediction_weights[0, 5] == pytest.approx(found.outside[0])
    assert met > 10, "cases that meet it"


@settings(max_examples=60)
@given(problems(), st.data())
def test_the_vote_is_on_held_models_within_the_budget_and_its_mean_is_p(
    problem: tuple[Floats, Integers, int], data: st.DataObject
) -> None:
    weights, costs, budget = problem
    visitor = data.draw(st.sampled_from([None, *range(costs.size)]))
    before = np.array(data.draw(st.lists(st.booleans(), min_size=costs.size, max_size=costs.size)))
    found = choose_often(weights, costs, budget, [] if visitor is None else [visitor], before)
    assert (found.held @ costs <= budget).all(), "never over budget"
    assert found.prediction_weights.sum(axis=1) == pytest.approx(1)
    assert (found.prediction_weights >= 0).all()
    assert (found.prediction_weights[~found.held] == 0).all()
    assert (found.certain <= found.held).all()
    # With `DRAWS` draws, five standard deviations of a weight of which a share is drawn.
    near = 2.5 * found.outside[0] / np.sqrt(DRAWS) + 1e-9
    assert found.prediction_weights.mean(axis=0) == pytest.approx(weights, abs=near)


@settings(max_examples=60)
@given(problems(), st.data())
def test_inclusion_probabilities_are_exact(problem: tuple[Floats, Integers, int], data: st.DataObject) -> None:
    """Against an enumeration of all draws, and the frequency with which a model is held to predict."""
    weights, costs, budget = problem
    visitor = data.draw(st.sampled_from([None, *range(costs.size)]))
    nothing = np.zeros(costs.size, dtype=np.bool_)
    found = choose_often(weights, costs, budget, [] if visitor is None else [visitor], nothing)
    layout = lay_out(weights, costs.astype(np.float64), budget, visitor)
    # A share of ρ is exact up to rounding over ρ.
    assume(layout.rho == 0 or layout.rho > 1e-6)
    assert np.flatnonzero(found.certain[0]).tolist() == sorted(layout.certain)
    inclusion = found.inclusion[0]
    assert inclusion == pytest.approx(layout.inclusion(weights), abs=1e-9)
    assert inclusion == pytest.approx(found.held.mean(axis=0), abs=2.5 / np.sqrt(DRAWS))
    assert (weights <= inclusion + 1e-9).all(), "a model's gradient counts with p/q, at most 1"
    possible = np.stack([vote for _, vote in layout.draws(weights)])
    for vote in np.unique(found.prediction_weights.round(9), axis=0):
        assert np.abs(possible - vote).max(axis=1).min() < 1e-8, "a draw of the enumeration"


@settings(max_examples=60)
@given(problems(), st.data())
def test_models_that_do_not_fit_are_omitted_as_often_as_asked_for(
    problem: tuple[Floats, Integers, int], data: st.DataObject
) -> None:
    """Then the heaviest fill the budget; what is expected and included is the mean over the draws."""
    weights, costs, budget = problem
    visitor = data.draw(st.sampled_from([None, *range(costs.size)]))
    omission = data.draw(st.sampled_from([0.0, 0.25, 1.0]))
    nothing = np.zeros(costs.size, dtype=np.bool_)
    visitors = [] if visitor is None else [visitor]
    found = choose_often(weights, costs, budget, visitors, nothing, omission=omission)
    drawn = choose_often(weights, costs, budget, visitors, nothing)
    assert (found.held @ costs <= budget).all()
    filling, room = found.filling[0], budget - int(costs[visitors].sum())
    for model in sorted(set(range(costs.size)) - set(visitors), key=lambda model: -weights[model]):
        assert filling[model] == (costs[model] <= room), "in the order of weights"
        room -= costs[model] * filling[model]
    omitting = np.random.default_rng(0)
    for _ in range(budget // int(costs.min()) + 2):
        omitting.permutation(DRAWS), omitting.random(DRAWS)
    omits = omitting.permutation(DRAWS) < omission * DRAWS
    share = weights * filling / weights[filling].sum()
    assert found.prediction_weights[omits] == pytest.approx(np.tile(share, (omits.sum(), 1)))
    assert (found.held[omits] == filling).all()
    assert np.array_equal(found.prediction_weights[~omits], drawn.prediction_weights[~omits])
    assert np.array_equal(found.held[~omits], drawn.held[~omits])
    assert found.expected[0] == pytest.approx((1 - omission) * weights + omission * share)
    assert found.inclusion[0] == pytest.approx((1 - omission) * drawn.inclusion[0] + omission * filling)


@pytest.mark.parametrize("places", range(2, 30))
def test_a_visitor_of_hardly_any_weight_beside_drawn_models_has_no_negative_one(places: int) -> None:
    costs = np.ones(3 * places, dtype=np.int64)
    weights = np.where(np.arange(costs.size) == 0, 1e-18, 1 / (costs.size - 1))
    found = choose_often(weights, costs, places + 1, [0], costs < 0)
    assert (found.prediction_weights >= 0).all()
    assert found.prediction_weights.sum(axis=1) == pytest.approx(1)


def test_models_that_merely_stay_do_not_vote_and_are_not_included() -> None:
    weights, costs = np.array([0.5, 0.3, 0.2, 0.0, 0.0]), np.ones(5, dtype=np.int64)
    before = np.array([False, False, False, True, False])
    found = choose_often(weights, costs, 4, [], before)
    assert found.held[:, 3].all(), "it still fits"
    assert not found.prediction_weights[:, 3].any()
    assert found.inclusion[0].tolist() == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("budget", "most", "visitors"), [(6, 3, [0]), (9, 3, [0, 1, 3]), (9, 2, [0, 1]), (8, 3, [0, 1])]
)
def test_visitors_leave_room_for_the_largest_model(budget: int, most: int, visitors: list[int]) -> None:
    costs, never = np.array([3, 2, 2, 1]), np.full((1, 4), -1)
    found = longest_away(never, costs, np.array([budget]), 1, most)
    assert np.flatnonzero(found[0]).tolist() == visitors


@settings(max_examples=100)
@given(problems(), st.integers(1, 8), st.data())
def test_visitors_are_those_away_for_longest_and_leave_room_for_a_vote(
    problem: tuple[Floats, Integers, int], most: int, data: st.DataObject
) -> None:
    weights, costs, budget = problem
    last = np.array(data.draw(st.lists(st.integers(-1, 9), min_size=costs.size, max_size=costs.size)))
    visitors = longest_away(last[None], costs, np.array([budget]), 10, most)[0]
    away = last < 9
    assert (visitors <= away).all(), "what was held in the last exchange does not visit"
    assert visitors.sum() <= most
    if away.any():
        assert visitors[last.argmin()]
    if visitors.sum() < min(most, away.sum()):
        left = budget - int(costs.max()) - int(costs[visitors].sum())
        assert (costs[away & ~visitors] > left).all(), "no further one fits"
    found = choose_often(weights, costs, budget, np.flatnonzero(visitors).tolist(), away)
    assert (found.held @ costs <= budget).all()
    assert (found.held >= visitors).all()


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(0, 12), st.integers(1, 3), st.integers(0, 99))
def test_every_model_visits_while_a_sample_is_kept(costs: list[int], more: int, stride: int, seed: int) -> None:
    """In any `window` rounds every model is held, with any budget of (a2)."""
    models = len(costs)
    window, rounds = max(2, stride * models), 30
    fleet = fleet_of(costs, [least_budget(np.array(costs)) + more] * 2, rounds=rounds)
    outputs, targets = make_stream(2, rounds, models, 1, seed)
    held = np.stack([found.plan.held for found in runs(fleet, outputs, targets, window=window)])
    for first in range(rounds - window + 1):
        assert held[first : first + window].any(axis=0).all(), first


@pytest.mark.parametrize(("interval", "budget"), [(3, 3), (5, 4), (10, 5), (25, 6)])
def test_several_visit_at_once_where_few_exchanges_fit_into_the_window(interval: int, budget: int) -> None:
    models, window, exchanges = 8, 30, 30
    kept = max(2, window // interval)
    assert budget > -(-models // kept), "the visitors of an exchange fit, and one model that votes"
    fleet = fleet_of([1] * models, [budget, models - 1], rounds=exchanges * interval, interval=interval)
    outputs, targets = make_stream(2, exchanges * interval, models, 1)
    held = np.stack([found.plan.held for found in runs(fleet, outputs, targets, window=window)])
    for first in range(exchanges - kept + 1):
        assert held[first : first + kept].any(axis=0).all(), first
