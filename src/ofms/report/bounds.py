"""Clusters, rates and regret bounds of OFMS-FT for a configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.core.packing import partition_models
from ofms.core.regret_bounds import server_bound, server_bound_by_use
from ofms.drawing.tables import format_table
from ofms.plugins import Trust
from ofms.policies import ofms_ft_theory as theory
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.registry import build_policy
from ofms.report.dictionaries import format_range
from ofms.runs.units import human_bytes
from ofms.simulator.experiments import prepare


def describe_bounds(
    experiment: str,
    given: dict[str, Any],
    *,
    distance: float | None = None,
    gradient: float | None = None,
    trust: Trust | Iterable[str] = (),
) -> dict[str, Any]:
    """Clusters, rates and bounds for every distinct budget, and for the server."""
    for name, value in (("distance", distance), ("gradient", gradient)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InvalidInput(name, value, "give a number of at least 0")
    config, dictionary = prepare(experiment, policy="ofms-ft", trust=trust, given={"preset": "theory"} | given)
    settings: OFMSFT = config.policy_settings()
    fleet = config.fleet(dictionary.catalogue())
    policy = build_policy("ofms-ft", settings, fleet)
    table = partition_models(fleet.catalogue.storage, fleet.budgets)
    rates = theory.learning_rates(settings.learning_rate, fleet, table)
    fewest = theory.fewest_clusters_by_budget(fleet.catalogue, table)
    rate = theory.fine_tuning_rate(settings, fleet, table)
    each = theory.client_bounds(rates, fleet, table) if policy.bound is not None else None
    printed = None if policy.bound is None else [float(policy.bound[table.kind == row][0]) for row in range(len(rates))]
    clients = [
        {
            "budget": budget,
            "clients": int((table.kind == row).sum()),
            "fewest_clusters": [fewest[row].lower, fewest[row].upper],
            "most_clusters": int(table.clusters[row].max()),
            "learning_rate": float(rates[row]),
            "theorem": each[row].theorem if each is not None else None,
            "sharp": each[row].sharp if each is not None else None,
            "best_of_run": printed[row] if printed is not None else None,
        }
        for row, budget in enumerate(table.budgets.tolist())
    ]
    groups = theory.largest_group_count(fleet, table)
    not_covered = theory.server_not_covered(settings) or ("" if rate > 0 else "the dictionary is frozen")
    server: dict[str, Any] = {
        "bandwidth": fleet.bandwidth,
        "most_groups": groups,
        "fine_tuning_rate": rate,
        "gradient_weight": settings.gradient_weight,
        "not_covered": not_covered or None,
    }
    if distance is not None and gradient is not None and not not_covered and settings.gradient_weight == "use":
        by_use = server_bound_by_use(
            distance=distance * math.sqrt(len(fleet.catalogue)),
            gradient=gradient,
            fine_tuning_rate=rate,
            most_groups=groups,
            rounds=fleet.schedule.require_rounds(),
            interval=fleet.schedule.interval,
        )
        server |= {"by_use": by_use.fixed, "by_use_best_of_run": by_use.realised}
    elif distance is not None and gradient is not None and not not_covered:
        bound = server_bound(
            distance=distance,
            gradient=gradient,
            fine_tuning_rate=rate,
            most_groups=groups,
            fewest_clusters=theory.mean_fewest_clusters(fleet, table),
            most_clusters=float(table.clusters.max(axis=1)[table.kind].mean()),
            rounds=fleet.schedule.require_rounds(),
            interval=fleet.schedule.interval,
        )
        server |= {"theorem": bound.theorem, "sharp": bound.sharp}
    schedule = fleet.schedule
    return {
        "experiment": config.experiment,
        "preset": config.preset,
        "models": len(fleet.catalogue),
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
            ["not covered"] * 3
            if row["theorem"] is None
            else [_bound(row[form], facts["rounds"]) for form in ("theorem", "sharp", "best_of_run")]
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
    regret = ["regret to a fixed model ≤ (th:4, th:5)", "≤ (sharp)", "to the best model of the run ≤"]
    clients = format_table(["budget", "clients", "μ", "max m", "learning rate", *regret], rows)
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
    if "by_use" in server:
        lines.append(
            f"server's regret on what clients use, all models together, ≤ {server['by_use']:.2f} to fixed parameters, "
            f"≤ {server['by_use_best_of_run']:.2f} to the best of the run, for convex losses on a bounded domain"
        )
    elif "theorem" in server:
        lines.append(
            f"server's regret ≤ {server['theorem']:.2f} (th:4, th:5), ≤ {server['sharp']:.2f} (sharp), "
            "for convex losses on a bounded domain"
        )
    elif server["not_covered"]:
        lines.append(f"server's regret: not covered: {server['not_covered']}")
    else:
        lines.append("server's regret: give --distance and --gradient; it holds for convex losses on a bounded domain")
    return "\n".join(lines)


def _bound(value: float, rounds: int) -> str:
    return f"{value:.2f}" + (" (vacuous: over T)" if value >= rounds else "")
