"""The theorems applied to a fleet that runs OFMS-FT: clusters, tuned rates, bounds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ofms.core import regret_bounds
from ofms.core.messages import Catalogue
from ofms.core.packing import BinCount, PartitionTable, fewest_clusters, largest_cluster_upload
from ofms.core.rates import require_horizon, resolve_rate
from ofms.core.typing import Floats
from ofms.core.uplink import most_groups
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.settings import LossBound, Rate


@lru_cache(maxsize=256)
def _fewest_clusters(costs: tuple[int, ...], budget: int) -> BinCount:
    return fewest_clusters(np.array(costs, dtype=np.int64), budget)


def fewest_clusters_by_budget(catalogue: Catalogue, table: PartitionTable) -> list[BinCount]:
    """μ, or bounds on it, for each distinct budget of the table."""
    costs = tuple(catalogue.storage.tolist())
    return [_fewest_clusters(costs, budget) for budget in table.budgets.tolist()]


def learning_rates(rate: Rate, fleet: Fleet, table: PartitionTable) -> Floats:
    """[G] η for each distinct budget of the table: `tuned` and `sharp` minimise the bounds of these names."""
    if rate not in ("tuned", "sharp"):
        number = resolve_rate("learning_rate", rate, rounds=fleet.schedule.rounds, tuned=0.0)
        return np.full(table.budgets.size, number)
    models, interval = len(fleet.catalogue), fleet.schedule.interval
    rounds = require_horizon("learning_rate", rate, fleet.schedule.rounds)
    if rate == "tuned":
        counts = [each.upper for each in fewest_clusters_by_budget(fleet.catalogue, table)]
        return np.array(
            [
                regret_bounds.tuned_learning_rate(
                    models=models, fewest_clusters=count, rounds=rounds, interval=interval
                )
                for count in counts
            ]
        )
    return np.array(
        [
            regret_bounds.sharp_learning_rate(models=models, most_clusters=count, rounds=rounds, interval=interval)
            for count in table.clusters.max(axis=1).tolist()
        ]
    )


def client_bounds(rates: Floats, fleet: Fleet, table: PartitionTable) -> list[regret_bounds.ClientBound]:
    """The bounds of th:4 and th:5 for each distinct budget of the table."""
    counts = fewest_clusters_by_budget(fleet.catalogue, table)
    return [
        regret_bounds.client_bound(
            models=len(fleet.catalogue),
            learning_rate=rate,
            fewest_clusters=count.upper,
            most_clusters=int(clusters.max()),
            rounds=fleet.schedule.require_rounds(),
            interval=fleet.schedule.interval,
        )
        for rate, count, clusters in zip(rates.tolist(), counts, table.clusters, strict=True)
    ]


def client_bound(
    loss_bound: LossBound, rates: Floats, fine_tuning_rate: float, fleet: Fleet, table: PartitionTable
) -> tuple[Floats | None, str]:
    """[N] a bound on each client's regret to the best model of its run; or None, and why the theorems do not apply."""
    if loss_bound == "raw":
        return None, "the selection loss is not bounded (a1)"
    if rates.min() == 0:
        return None, "a learning rate of 0 never learns"
    if fleet.schedule.rounds is None:
        return None, "there is no horizon"
    bounds = client_bounds(rates, fleet, table)
    # Models that nobody fine-tunes do not react to draws, so their best one is a fixed model.
    forms = [each.realised if fine_tuning_rate > 0 else each.sharp for each in bounds]
    return np.array(forms)[table.kind], ""


def server_not_covered(settings: OFMSFT) -> str:
    """Why the theorems do not bound the server's regret with these settings; empty if they do."""
    reasons = {
        "the selection loss is not bounded (a1)": settings.loss_bound == "raw",
        "the importance weights are capped": settings.importance_cap is not None
        and settings.gradient_weight == "inverse",
        "the fine-tuning loss averages a window": settings.window != 1,
        "the first rounds do not fine-tune": settings.warm_up != 0,
        "the server does not apply the mean of (3r2)": settings.server_step != 1,
    }
    return ", ".join(reason for reason, applies in reasons.items() if applies)


def mean_fewest_clusters(fleet: Fleet, table: PartitionTable) -> float:
    """The mean of μ_i over clients."""
    counts = [count.upper for count in fewest_clusters_by_budget(fleet.catalogue, table)]
    return float(np.array(counts)[table.kind].mean())


def largest_group_count(fleet: Fleet, table: PartitionTable) -> int:
    """The largest possible α."""
    largest = largest_cluster_upload(fleet.catalogue.upload, table)
    return most_groups(fleet.budgets.size, largest, fleet.bandwidth)


def fine_tuning_rate(settings: OFMSFT, fleet: Fleet, table: PartitionTable) -> float:
    """η_f as a number; `tuned` is 1/√(α n T · mean μ), eq. (75ap), with the largest possible α; by use, without μ."""
    rate, tuned = settings.fine_tuning_rate, 0.0
    if rate == "tuned":
        by_use = settings.gradient_weight == "use"
        tuned = regret_bounds.tuned_fine_tuning_rate(
            most_groups=largest_group_count(fleet, table),
            fewest_clusters=1.0 if by_use else mean_fewest_clusters(fleet, table),
            rounds=require_horizon("fine_tuning_rate", rate, fleet.schedule.rounds),
            interval=fleet.schedule.interval,
        )
    return resolve_rate("fine_tuning_rate", rate, rounds=fleet.schedule.rounds, tuned=tuned)
