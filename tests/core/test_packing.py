"""Packing: first-fit decreasing against the plain algorithm, exact counts against brute force."""

from __future__ import annotations

import tracemalloc
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.core import selection
from ofms.core.packing import (
    all_but_one,
    fewest_bins,
    fewest_clusters,
    first_fit_decreasing,
    largest_cluster_upload,
    partition,
    partition_models,
    smallest_budget,
)
from ofms.core.packing.all_but_one import pack_all_but_one
from ofms.core.packing.bin_count import BinCount
from ofms.core.packing.first_fit import _place_by_size, _place_one_by_one
from ofms.core.typing import AnyArray
from ofms.core.uplink import draw_group


def plain_first_fit_decreasing(sizes: list[int], capacity: int) -> list[int]:
    """The textbook algorithm, one item at a time."""
    bins: list[int] = []
    where = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        for number, room in enumerate(bins):
            if sizes[item] <= room:
                bins[number] -= sizes[item]
                where[item] = number
                break
        else:
            where[item] = len(bins)
            bins.append(capacity - sizes[item])
    return where


def brute_force_count(sizes: list[int], capacity: int) -> int:
    """The least number of bins by trying every subset as the next bin."""
    full = (1 << len(sizes)) - 1
    weight = [sum(size for bit, size in enumerate(sizes) if subset >> bit & 1) for subset in range(full + 1)]

    @cache
    def least(left: int) -> int:
        if not left:
            return 0
        first = left & -left
        best, subset = len(sizes), left
        while subset:
            if subset & first and weight[subset] <= capacity:
                best = min(best, 1 + least(left & ~subset))
            subset = (subset - 1) & left
        return best

    return least(full)


items = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(0, capacity), max_size=40), st.just(capacity))
)


@given(items)
def test_first_fit_decreasing_equals_the_plain_algorithm(case: tuple[list[int], int]) -> None:
    sizes, capacity = case
    packing = first_fit_decreasing(np.array(sizes, dtype=np.int64), capacity)
    expected = plain_first_fit_decreasing(sizes, capacity)
    assert packing.bin.tolist() == expected
    assert packing.count == (max(expected) + 1 if expected else 0)
    if sizes:
        descending = np.array(sorted(sizes, reverse=True))
        most = min(len(sizes), 2 * sum(sizes) // capacity + 1)
        for place in (_place_by_size, _place_one_by_one):
            bins, count = place(descending, capacity, most)
            assert bins.tolist() == plain_first_fit_decreasing(descending.tolist(), capacity)
            assert count == packing.count


@pytest.mark.parametrize("distinct", [6, 60, 3000])
def test_first_fit_decreasing_equals_the_plain_algorithm_for_many_items(distinct: int) -> None:
    random = np.random.default_rng(0)
    sizes = random.choice(random.integers(1, 10_000, size=distinct), size=3000).tolist()
    for capacity in (10_000, 20_001, 97_000, 5_000_000):
        assert first_fit_decreasing(np.array(sizes), capacity).bin.tolist() == plain_first_fit_decreasing(
            sizes, capacity
        )


def test_an_item_larger_than_the_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes must lie in \[0, 5\]"):
        first_fit_decreasing(np.array([3, 6]), 5)


small_items = st.integers(5, 30).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), min_size=1, max_size=9), st.just(capacity))
)


@given(small_items)
def test_the_fewest_bins_are_exact_and_first_fit_decreasing_keeps_its_guarantee(case: tuple[list[int], int]) -> None:
    sizes, capacity = case
    least = brute_force_count(sizes, capacity)
    count = fewest_bins(np.array(sizes), capacity)
    assert (count.lower, count.upper) == (least, least)
    assert first_fit_decreasing(np.array(sizes), capacity).count <= 11 / 9 * least + 2 / 3


@given(small_items)
def test_bounds_hold_when_the_search_is_cut_short(case: tuple[list[int], int]) -> None:
    sizes, capacity = case
    count = fewest_bins(np.array(sizes), capacity, effort=1)
    assert count.lower <= brute_force_count(sizes, capacity) <= count.upper


dictionaries = st.lists(st.integers(1, 50), min_size=2, max_size=20).flatmap(
    lambda costs: st.tuples(st.just(costs), st.integers(smallest_budget(np.array(costs)), 2 * sum(costs) + 1))
)


@given(dictionaries)
def test_clusters_partition_the_other_models_and_fit(case: tuple[list[int], int]) -> None:
    costs, budget = np.array(case[0]), case[1]
    table = partition_models(costs, np.array([budget]))
    for chosen in range(costs.size):
        cluster = table.cluster(np.array([0]), np.array([chosen]))[0]
        others = np.delete(np.arange(costs.size), chosen)
        assert cluster[chosen] == -1
        assert set(cluster[others].tolist()) == set(range(table.clusters[0, chosen]))
        loads = np.bincount(cluster[others], weights=costs[others])
        assert loads.max() <= budget - costs[chosen]


@given(dictionaries)
def test_the_number_of_clusters_satisfies_the_proof(case: tuple[list[int], int]) -> None:
    costs, budget = np.array(case[0]), case[1]
    clusters = partition_models(costs, np.array([budget])).clusters[0]
    mu = fewest_clusters(costs, budget)
    for chosen, count in enumerate(clusters.tolist()):
        least = fewest_bins(np.delete(costs, chosen), budget - int(costs[chosen]))
        assert least.lower <= count <= 11 / 9 * least.upper + 2 / 3
    assert clusters.max() <= 11 / 9 * mu.upper + 2 / 3
    assert clusters.max() <= 2 * mu.upper
    if mu.exact:
        assert clusters.max() >= mu.lower


@pytest.mark.parametrize(("budget", "mu"), [(2, 19), (3, 10), (5, 5), (10, 3), (20, 1)])
def test_mu_of_equal_costs_is_rounded_up(budget: int, mu: int) -> None:
    count = fewest_clusters(np.ones(20, dtype=np.int64), budget)
    assert (count.lower, count.upper) == (mu, mu)


@pytest.mark.parametrize("budget", [2, 3, 5, 10])
@pytest.mark.parametrize("values", [(240_528, 159_254), (273_066, 307_114)])
def test_mu_is_exact_for_the_papers_dictionaries(values: tuple[int, int], budget: int) -> None:
    costs = 4 * np.array(values * 10)
    assert fewest_clusters(costs, budget * int(costs.max())).exact


@given(st.lists(st.integers(100_000, 1_000_000), min_size=20, max_size=20), st.sampled_from([2, 3, 5, 10]))
def test_mu_is_exact_for_twenty_models_of_any_sizes(costs: list[int], budget: int) -> None:
    assert fewest_clusters(np.array(costs), budget * max(costs)).exact


def test_bounds_hold_for_many_models_of_different_sizes() -> None:
    costs = np.random.default_rng(0).integers(100_000, 1_000_000, size=300)
    for budget in (2, 3, 5):
        count = fewest_clusters(costs, budget * int(costs.max()), effort=20_000)
        table = partition_models(costs, np.array([budget * int(costs.max())]))
        assert count.lower <= count.upper <= table.clusters.max()


def test_a_larger_capacity_may_need_more_bins() -> None:
    sizes = np.array([44, 24, 24, 22, 21, 17, 8, 8, 6, 6])
    assert [first_fit_decreasing(sizes, capacity).count for capacity in (60, 61)] == [3, 4]


@given(dictionaries)
def test_the_largest_upload_is_that_of_a_set_that_can_be_drawn(case: tuple[list[int], int]) -> None:
    costs, budget = np.array(case[0]), case[1]
    uploads = costs[::-1].copy()
    table = partition_models(costs, np.array([budget]))
    sums = [
        uploads[chosen] + uploads[table.cluster(np.array([0]), np.array([chosen]))[0] == cluster].sum()
        for chosen in range(costs.size)
        for cluster in range(table.clusters[0, chosen])
    ]
    assert largest_cluster_upload(uploads, table) == max(sums)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=30), st.integers(0, 60), st.data()
)
def test_all_but_one_are_packed_as_one_after_the_other(
    items: list[tuple[int, int]], more: int, data: st.DataObject
) -> None:
    sizes, weights = np.array(items).T
    capacity = smallest_budget(sizes) + more - sizes
    left_out = np.array(data.draw(st.lists(st.integers(0, sizes.size - 1), min_size=1, max_size=40)))
    with patch.object(all_but_one, "_AT_ONCE", data.draw(st.integers(1, 200))):
        packed = all_but_one.pack_all_but_one(sizes, left_out, capacity[left_out], weights)
    for place, item in enumerate(left_out.tolist()):
        others = np.delete(np.arange(sizes.size), item)
        expected = first_fit_decreasing(sizes[others], int(capacity[item]))
        assert packed.bins[place] == expected.count
        assert packed.heaviest[place] == np.bincount(expected.bin, weights=weights[others], minlength=1).max()


@given(dictionaries)
def test_clusters_are_the_same_whether_or_not_there_is_memory_for_all(case: tuple[list[int], int]) -> None:
    costs, budgets = np.array(case[0]), np.array([case[1], case[1] + 3, case[1]])
    kept, drawn = partition_models(costs, budgets), partition_models(costs, budgets)
    models, kinds = np.arange(costs.size), np.resize(kept.kind, costs.size)
    expected = kept.cluster(kinds, models).tolist()
    assert kept.cluster(kinds, models).tolist() == expected, "the second time they are looked up"
    with patch.object(partition, "_MOST_BYTES", 0):
        assert drawn.cluster(kinds, models).tolist() == expected


def device_bytes(costs: AnyArray) -> int:
    """The most memory that a device allocates to partition models and to draw two sets of them."""
    tracemalloc.start()
    try:
        table = partition_models(costs, np.array([5 * int(costs.max())]))
        for chosen in (0, costs.size - 1):
            selection.held_set(table, table.kind, np.array([chosen]), np.array([1]))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_device_of_ten_thousand_models_partitions_them_in_ten_megabytes() -> None:
    assert device_bytes(np.resize(np.array([1_092_264, 962_112, 637_016, 1_228_456]), 10_000)) < 10e6


@pytest.mark.slow
def test_ten_thousand_models_of_different_costs_are_partitioned_in_ten_megabytes() -> None:
    assert device_bytes(np.random.default_rng(0).permutation(np.arange(500_000, 1_500_000, 100))) < 10e6


def test_mu_of_many_models_of_different_costs_is_bounded() -> None:
    costs = np.random.default_rng(0).permutation(np.arange(500_000, 1_500_000, 1000))
    budget = 5 * int(costs.max())
    count, alone = (
        fewest_clusters(costs, budget),
        fewest_bins(np.delete(costs, costs.argmax()), budget - int(costs.max())),
    )
    assert alone.lower <= count.lower <= count.upper == partition_models(costs, np.array([budget])).clusters.max()


def test_no_item_one_item_and_many_by_hand() -> None:
    """Few distinct sizes and many distinct ones, which are placed in different ways."""
    nothing = first_fit_decreasing(np.zeros(0, dtype=np.int64), 5)
    assert (nothing.bin.tolist(), nothing.bin.dtype.name, nothing.count) == ([], "int64", 0)
    assert first_fit_decreasing([], 5).count == 0  # type: ignore[arg-type]
    one = first_fit_decreasing(np.array([5]), 5)
    assert (one.bin.tolist(), one.count) == ([0], 1)
    halves = first_fit_decreasing(np.array([3] * 20 + [2] * 20), 5)
    assert (halves.bin.tolist(), halves.count) == ([*range(20)] * 2, 20)
    zeros = first_fit_decreasing(np.array([0, 0, 4, 0]), 4)
    assert (zeros.bin.tolist(), zeros.count) == ([0, 0, 0, 0], 1)
    largest = draw_group(np.array([4, 4, 2]), bandwidth=6, uniform=1.0)
    assert (largest.count, largest.uploads.tolist()) == (2, [False, True, False])


@pytest.mark.parametrize("kinds", [4, 300])
def test_equal_items_are_placed_in_their_order(kinds: int) -> None:
    """Many items: NumPy's default sorting would not keep the order of equal ones."""
    random = np.random.default_rng(kinds)
    sizes = random.integers(1, 1 + kinds, 300)
    found = first_fit_decreasing(sizes, 2 * kinds)
    assert found.bin.tolist() == plain_first_fit_decreasing(sizes.tolist(), 2 * kinds)


def test_all_but_one_of_many_equal_items_by_plain_packing() -> None:
    """Equal sizes with different weights: the heaviest bin depends on the order."""
    random = np.random.default_rng(5)
    sizes, weights = random.integers(1, 4, 60), random.integers(1, 100, 60)
    left_out, capacity = np.array([0, 7, 59]), np.array([7, 9, 11])
    found = pack_all_but_one(sizes, left_out, capacity, weights)
    for place, (out, most) in enumerate(zip(left_out.tolist(), capacity.tolist(), strict=True)):
        bins = np.array(plain_first_fit_decreasing(np.delete(sizes, out).tolist(), most))
        assert found.bins[place] == bins.max() + 1
        assert found.heaviest[place] == np.bincount(bins, np.delete(weights, out)).max()


def test_clusters_that_do_not_fit_the_memory_are_computed_when_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, budgets = np.array([4, 3, 2, 1]), np.array([7, 9])
    kind, chosen = np.array([0, 1, 0, 0]), np.array([2, 2, 0, 2])
    expected = partition_models(costs, budgets).cluster(kind, chosen)
    monkeypatch.setattr(partition, "_MOST_BYTES", 0)
    assert partition_models(costs, budgets).cluster(kind, chosen).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("sizes", "capacity", "least"),
    [
        ([5, 9, 5, 3, 7, 9], 19, 2),
        ([14, 10, 16, 8, 12, 12], 37, 2),
        ([1, 13, 17, 17, 3, 9, 5, 11, 14], 30, 3),
        ([2, 6, 3, 6, 6, 4, 6, 5, 6, 6], 13, 4),
        ([4, 49, 28, 48, 12, 7, 36, 5, 41, 15], 50, 5),
    ],
)
def test_a_search_that_finds_fewer_bins_than_first_fit(sizes: list[int], capacity: int, least: int) -> None:
    """Their number was counted by brute force. Items of size 0 need no bin; one step is not enough."""
    assert first_fit_decreasing(np.array(sizes), capacity).count == least + 1
    assert fewest_bins(np.array(sizes), capacity) == BinCount(least, least)
    assert fewest_bins([0, *sizes, 0], capacity) == BinCount(least, least)  # type: ignore[arg-type]
    assert fewest_bins(np.array(sizes), capacity, effort=1) == BinCount(least, least + 1)


@pytest.mark.parametrize(
    ("sizes", "capacity", "least"),
    [
        ([22, 4, 11, 15, 22, 3, 18, 19], 38, 4),
        ([7, 16, 9, 14, 16, 16, 13], 31, 4),
        ([15, 15, 4, 1, 15, 15, 15, 13], 31, 4),
        ([19, 14, 14, 23, 10, 9, 12, 20, 21], 36, 5),
        ([11, 9, 11, 11, 11, 1, 7, 11, 11, 8], 23, 5),
    ],
)
def test_a_search_that_finds_that_first_fit_is_best(sizes: list[int], capacity: int, least: int) -> None:
    """More bins than the lower bound, which all attempts confirm; one step does not."""
    assert fewest_bins(np.array(sizes), capacity) == BinCount(least, least)
    assert fewest_bins(np.array(sizes), capacity, effort=1) == BinCount(least - 1, least)


def test_nothing_needs_no_bins() -> None:
    assert fewest_bins(np.zeros(0, dtype=np.int64), 4) == fewest_bins(np.zeros(3, dtype=np.int64), 4) == BinCount(0, 0)
