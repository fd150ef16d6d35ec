"""The theorems' bounds for a setting, in figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.core.bounds import server_bound
from ofms.core.packing import fewest_clusters, largest_cluster_upload, partition_models
from ofms.core.uplink import most_groups
from ofms.policies import ofms_ft
from ofms.policies.registry import build_policy
from ofms.report.dictionaries import format_range
from ofms.report.tables import format_table
from ofms.runs.units import human_bytes
from ofms.simulator.api import prepare


def describe_bounds(
    experiment: str, given: dict[str, Any], *, distance: float | None = None, gradient: float | None = None
) -> dict[str, Any]:
    """Clusters, rates and bounds for every distinct budget, and those of the server."""
    config, dictionary = prepare(experiment, given={"preset": "theory"} | given)
    settings = config.policy_settings()
    fleet = config.fleet(dictionary.catalogue())
    policy = build_policy("ofms-ft", settings, fleet)
    catalogue, schedule = fleet.catalogue, fleet.schedule
    table = partition_models(catalogue.storage, fleet.budgets)
    rates = ofms_ft.learning_rates(settings, catalogue, table, schedule)
    each = ofms_ft.client_bounds(settings, fleet, table)
    fewest = [fewest_clusters(catalogue.storage, budget) for budget in table.budgets.tolist()]
    clients = [
        {
            "budget": budget,
            "clients": int((table.kind == row).sum()),
            "fewest_clusters": [fewest[row].lower, fewest[row].upper],
            "most_clusters": int(table.clusters[row].max()),
            "learning_rate": float(rates[row]),
            "theorem": each[row].theorem if policy.bound is not None else None,
            "sharp": each[row].sharp if policy.bound is not None else None,
        }
        for row, budget in enumerate(table.budgets.tolist())
    ]
    rate = ofms_ft.fine_tuning_rate(settings, fleet, table)
    groups = most_groups(fleet.budgets.size, largest_cluster_upload(catalogue.upload, table), fleet.bandwidth)
    server: dict[str, Any] = {"bandwidth": fleet.bandwidth, "most_groups": groups, "fine_tuning_rate": rate}
    if distance is not None and gradient is not None and rate > 0:
        bound = server_bound(
            distance=distance,
            gradient=gradient,
            fine_tuning_rate=rate,
            most_groups=groups,
            fewest_clusters=float(np.array([count.upper for count in fewest])[table.kind].mean()),
            most_clusters=float(table.clusters.max(axis=1)[table.kind].mean()),
            rounds=schedule.rounds,
            interval=schedule.interval,
        )
        server |= {"theorem": bound.theorem, "sharp": bound.sharp}
    return {
        "experiment": config.experiment,
        "preset": config.preset,
        "models": len(catalogue),
        "rounds": schedule.rounds,
        "interval": schedule.interval,
        "not_covered": policy.not_covered or None,
        "clients": clients,
        "server": server,
    }


def bounds_table(facts: dict[str, Any]) -> str:
    """The description as text."""
    rows = []
    for row in facts["clients"]:
        bound = (
            ["not covered"] * 2
            if row["theorem"] is None
            else [_bound(row[form], facts["rounds"]) for form in ("theorem", "sharp")]
        )
        rows.append(
            [
                human_bytes(row["budget"]),
                str(row["clients"]),
                format_range(row["fewest_clusters"]),
                str(row["most_clusters"]),
                f"{row['learning_rate']:.4f}",
                *bound,
            ]
        )
    clients = format_table(
        ["budget", "clients", "μ", "max m", "learning rate", "regret ≤ (th:4, th:5)", "≤ (sharp)"], rows
    )
    server = facts["server"]
    lines = [
        f"K = {facts['models']}, T = {facts['rounds']}, n = {facts['interval']}, preset {facts['preset']}",
        "",
        clients,
        "",
        f"server: at most {server['most_groups']} groups, fine-tuning rate {server['fine_tuning_rate']:.4g}",
    ]
    if facts["not_covered"]:
        lines.insert(3, f"not covered: {facts['not_covered']}")
    if "theorem" in server:
        lines.append(
            f"server's regret ≤ {server['theorem']:.2f} (th:4, th:5), ≤ {server['sharp']:.2f} (sharp), "
            "for convex losses on a bounded domain"
        )
    else:
        lines.append("server's regret: give --distance and --gradient; it holds for convex losses on a bounded domain")
    return "\n".join(lines)


def _bound(value: float, rounds: int) -> str:
    return f"{value:.2f}" + (" (vacuous: over T)" if value >= rounds else "")
