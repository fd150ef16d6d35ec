"""Selection: probabilities, and unbiased estimates by enumeration of all draws."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ofms.core import selection
from ofms.core.packing import PartitionTable, fewest_clusters, partition_models, smallest_budget
from ofms.core.regret_bounds import largest_second_moment
from ofms.core.typing import Flags, Floats, Integers
from ofms.core.uplink import draw_group, most_groups, upload_needs

Case = tuple[Integers, PartitionTable, Floats, Floats]


@st.composite
def fleets(draw: st.DrawFn, models: int = 6, clients: int = 3) -> Case:
    """Costs, the partitions of clients with different budgets, their cumulative losses and learning rates."""
    costs = np.array(draw(st.lists(st.integers(1, 20), min_size=2, max_size=models)))
    least = smallest_budget(costs)
    budgets = np.array(draw(st.lists(st.integers(least, least + 40), min_size=1, max_size=clients)))
    shape = (budgets.size, costs.size)
    cumulative = draw(arrays(np.float64, shape, elements=st.floats(0, 1e4)))
    rates = draw(arrays(np.float64, budgets.size, elements=st.floats(1e-4, 10)))
    return costs, partition_models(costs, budgets), cumulative, rates


def all_draws(table: PartitionTable, client: int, pmf: Floats) -> list[tuple[float, Flags]]:
    """Every (probability, held set) that a client can draw."""
    kind = table.kind[client : client + 1]
    draws = []
    for chosen in range(pmf.size):
        clusters = int(table.clusters[kind[0], chosen])
        for cluster in range(clusters):
            held = selection.held_set(table, kind, np.array([chosen]), np.array([cluster]))[0]
            draws.append((pmf[chosen] / clusters, held))
    return draws


@given(fleets())
def test_probabilities_sum_to_one_and_inclusion_keeps_its_lower_bounds(
    fleet: Case,
) -> None:
    costs, table, cumulative, rates = fleet
    pmf = selection.probabilities(cumulative, rates)
    clusters = table.clusters[table.kind]
    inclusion = selection.inclusion_probabilities(pmf, clusters)
    assert pmf.sum(axis=1) == pytest.approx(1, abs=1e-12)
    assert (inclusion <= 1 + 1e-12).all()
    for client, kind in enumerate(table.kind):
        mu = fewest_clusters(costs, int(table.budgets[kind])).upper
        assert inclusion[client].min() >= 1 / clusters[client].max() - 1e-15
        assert inclusion[client].min() >= 1 / (2 * mu) - 1e-15
        paper = pmf[client] + (1 - pmf[client]) / (2 * mu)
        assert (inclusion[client] >= paper - 1e-12).all()
        most = int(clusters[client].max())
        sharp = pmf[client] + (1 - pmf[client]) / most
        assert (inclusion[client] >= sharp - 1e-12).all()
        assert (pmf[client] / inclusion[client]).sum() <= largest_second_moment(costs.size, most) * (1 + 1e-12)


def test_the_second_moment_is_attained_by_the_uniform_pmf() -> None:
    """Equal costs: every chosen model has the same number of clusters, so the inequality is an equality."""
    table = partition_models(np.ones(20, dtype=np.int64), np.array([2, 5]))
    for clusters, most in zip(table.clusters, (19, 5), strict=True):
        uniform = np.full((1, 20), 1 / 20)
        inclusion = selection.inclusion_probabilities(uniform, clusters[None])
        assert (uniform / inclusion).sum() == pytest.approx(largest_second_moment(20, most), rel=1e-12)


@given(fleets(), st.data())
def test_inclusion_and_loss_estimates_are_exact_over_all_draws(fleet: Case, data: st.DataObject) -> None:
    costs, table, cumulative, rates = fleet
    pmf = selection.probabilities(cumulative, rates)
    inclusion = selection.inclusion_probabilities(pmf, table.clusters[table.kind])
    losses = data.draw(arrays(np.float64, pmf.shape, elements=st.floats(0, 1)))
    for client in range(pmf.shape[0]):
        draws = all_draws(table, client, pmf[client])
        held = sum(probability * flags for probability, flags in draws)
        assert held == pytest.approx(inclusion[client], rel=1e-12)
        for _, flags in draws:
            budget = table.budgets[table.kind[client]]
            assert costs[flags].sum() <= budget
        one = slice(client, client + 1)
        estimates = [
            (probability, selection.loss_estimates(losses[one], flags[None], inclusion[one])[0])
            for probability, flags in draws
        ]
        mean = sum(probability * estimate for probability, estimate in estimates)
        assert mean == pytest.approx(losses[client], rel=1e-12, abs=1e-300)
        square = sum(probability * estimate**2 for probability, estimate in estimates)
        assert square == pytest.approx(losses[client] ** 2 / inclusion[client], rel=1e-12, abs=1e-300), "(40ap)"


@given(fleets(models=4, clients=3), st.integers(0, 30))
def test_gradient_weights_are_exact_over_all_draws_though_the_number_of_groups_varies(fleet: Case, extra: int) -> None:
    """E[update_weight] = 1 for every client and model, whatever the number of groups (32apa).

    And E[update_weight²] is at most the largest α over q (32apb). By use it is p in expectation, at most α p in square.
    """
    costs, table, cumulative, rates = fleet
    pmf = selection.probabilities(cumulative, rates)
    inclusion = selection.inclusion_probabilities(pmf, table.clusters[table.kind])
    bandwidth = int(table.budgets.max()) + extra
    expected, square = np.zeros_like(pmf), np.zeros_like(pmf)
    by_use, by_use_square = np.zeros_like(pmf), np.zeros_like(pmf)
    counts = set()
    for joint in product(*(all_draws(table, client, pmf[client]) for client in range(pmf.shape[0]))):
        probability = float(np.prod([each[0] for each in joint]))
        held = np.stack([each[1] for each in joint])
        needs = upload_needs(held, costs)
        count = draw_group(needs, bandwidth, 0.0).count
        counts.add(count)
        for group in range(count):
            groups = draw_group(needs, bandwidth, (group + 0.5) / count)
            assert groups.drawn == group
            update_weight = selection.importance_weights(held, inclusion, groups.uploads, groups.count)
            expected += probability / count * update_weight
            square += probability / count * update_weight**2
            use = selection.use_weights(held, pmf, inclusion, groups.uploads, groups.count)
            assert use.max() <= count * (1 + 1e-12), "no cap is needed"
            by_use += probability / count * use
            by_use_square += probability / count * use**2
    assert (square <= max(counts) / inclusion * (1 + 1e-12)).all()
    assert (square >= min(counts) / inclusion * (1 - 1e-12)).all()
    assert expected == pytest.approx(np.ones_like(pmf), rel=1e-12)
    assert by_use == pytest.approx(pmf, rel=1e-9, abs=1e-15)
    assert (by_use_square <= max(counts) * pmf**2 / inclusion * (1 + 1e-9) + 1e-15).all()
    assert (by_use_square.sum(axis=1) <= max(counts) * (1 + 1e-9)).all()
    assert max(counts) <= most_groups(pmf.shape[0], int(table.budgets.max()), bandwidth)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=50), st.integers(30, 200))
def test_no_group_needs_more_than_the_bandwidth(needs: list[int], bandwidth: int) -> None:
    groups = draw_group(np.array(needs), bandwidth, 0.99)
    assert np.bincount(groups.group, weights=needs).max() <= bandwidth
    assert groups.count <= most_groups(len(needs), max(needs), bandwidth)
    assert 0 <= groups.drawn < groups.count


@given(fleets(), st.floats(0, 1, exclude_max=True))
def test_no_draw_picks_a_model_of_probability_zero(fleet: Case, uniform: float) -> None:
    _, _, cumulative, rates = fleet
    pmf = selection.probabilities(cumulative, rates)
    chosen = selection.draw_model(pmf, np.full(pmf.shape[0], uniform))
    assert (pmf[np.arange(pmf.shape[0]), chosen] > 0).all()
    last = selection.draw_model(pmf, np.full(pmf.shape[0], np.nextafter(1, 0)))
    assert (pmf[np.arange(pmf.shape[0]), last] > 0).all()


@given(fleets())
def test_a_clients_numbers_do_not_depend_on_the_others(
    fleet: Case,
) -> None:
    _, table, cumulative, rates = fleet
    together = selection.probabilities(cumulative, rates)
    inclusion = selection.inclusion_probabilities(together, table.clusters[table.kind])
    for client in range(cumulative.shape[0]):
        one = slice(client, client + 1)
        alone = selection.probabilities(cumulative[one], rates[one])
        assert alone[0].tolist() == together[client].tolist()
        q = selection.inclusion_probabilities(alone, table.clusters[table.kind[one]])
        assert q[0].tolist() == inclusion[client].tolist()


@given(fleets(), st.integers(1, 4), st.integers(0, 2**32))
def test_clients_drawn_in_blocks_get_the_same_sets(fleet: Case, block: int, seed: int) -> None:
    _, table, cumulative, rates = fleet
    random = np.random.default_rng(seed)
    uniform = random.random((2, rates.size))
    whole = selection.draw_sets(cumulative, rates, table, *uniform)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_NUMBERS_IN_A_BLOCK", block * cumulative.shape[1])
        parts = selection.draw_sets(cumulative, rates, table, *uniform)
    for name in ("chosen", "held", "inclusion"):
        assert getattr(parts, name).tobytes() == getattr(whole, name).tobytes()
    pmf = selection.probabilities(cumulative, rates)
    assert whole.chosen.tolist() == selection.draw_model(pmf, uniform[0]).tolist()
    expected = selection.inclusion_probabilities(pmf, table.clusters[table.kind])
    assert whole.inclusion.tolist() == expected.tolist()
    assert whole.held[np.arange(rates.size), whole.chosen].all()


def run_extreme_rounds(rounds: int, start: Floats) -> None:
    """Rounds with losses of 0 or a million, through all steps of a selection."""
    table = partition_models(np.array([3, 2, 2, 1]), np.array([5, 6]))
    clusters = table.clusters[table.kind]
    random = np.random.default_rng(0)
    cumulative = start
    for _ in range(rounds):
        pmf = selection.probabilities(cumulative, np.array([10.0, 0.01]))
        chosen = selection.draw_model(pmf, random.random(2))
        held = selection.held_set(table, table.kind, chosen, np.zeros(2, dtype=np.int64))
        inclusion = selection.inclusion_probabilities(pmf, clusters)
        losses = 1e6 * random.integers(0, 2, size=(2, 4)).astype(float)
        cumulative = selection.update_weights(cumulative, selection.loss_estimates(losses, held, inclusion))
    assert np.isfinite(cumulative).all()
    assert np.isfinite(pmf).all()
    assert pmf.sum(axis=1) == pytest.approx(1, abs=1e-12)
    assert (inclusion >= 1 / clusters.max(axis=1, keepdims=True) - 1e-15).all()


def test_weights_stay_finite_at_the_end_of_a_million_extreme_rounds() -> None:
    run_extreme_rounds(1000, np.random.default_rng(1).uniform(0, 2e12, size=(2, 4)))


@pytest.mark.slow
def test_weights_stay_finite_over_a_million_extreme_rounds() -> None:
    run_extreme_rounds(1_000_000, np.zeros((2, 4)))


def test_the_cap_and_the_number_of_groups_enter_the_weight() -> None:
    held = np.array([[True, True], [True, False]])
    inclusion = np.array([[0.5, 0.01], [0.25, 0.5]])
    update_weight = selection.importance_weights(held, inclusion, np.array([True, False]), groups=3, cap=20.0)
    assert update_weight.tolist() == [[6.0, 60.0], [0.0, 0.0]]


def test_probabilities_of_clients_with_different_losses_by_hand() -> None:
    """Losses 5, 5 + ln 3 at rate 1 and 1000, 1000 + ln 3 at rate 2: weights 1, 1/3 and 1, 1/9."""
    losses = np.array([[5.0, 5 + np.log(3)], [1000 + np.log(3), 1000.0]])
    found = selection.probabilities(losses, np.array([1.0, 2.0]))
    assert found == pytest.approx(np.array([[0.75, 0.25], [0.1, 0.9]]))
    assert losses[0, 0] == 5, "what was given is not changed"


def test_draws_at_the_end_of_a_distribution_that_is_rounded_down() -> None:
    """The last model with a probability, of each client by itself; a cluster is at most the last one."""
    pmf = np.array([[0.5, 0.25, 0.0], [0.25, 0.25, 0.25], [0.7, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert selection.draw_model(pmf, np.array([0.9, 0.9, 0.9, 0.0])).tolist() == [1, 2, 0, 2]
    assert selection.draw_model(pmf, np.array([0.6, 0.5, 0.0, 0.9])).tolist() == [1, 2, 0, 2]
    assert selection.draw_cluster(np.array([3, 1, 2]), np.array([1.0, 1.0, 0.5])).tolist() == [2, 0, 1]
