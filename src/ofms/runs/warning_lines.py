"""Warnings about a run whose figures say less than they seem to: one line each, in the summary, tables and pages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ofms.core.typing import AnyArray
from ofms.core.words import counted
from ofms.policies.local_updates import LocalUpdate
from ofms.runs.figures import took_part

if TYPE_CHECKING:
    from ofms.runs.result import Result

# Of the samples; more of them at the bound hide what differs between models.
_MOST_SATURATED = 0.1
_STANDARD_ERRORS = 2.0
_MOST_NAMED = 5


def run_warnings(
    *,
    metric: str,
    rounds: int,
    interval: int = 1,
    loss_bound: str,
    local: LocalUpdate | None,
    saturated: float,
    clients: Mapping[str, AnyArray],
) -> list[str]:
    """The warnings of one run.

    Parameters
    ----------
    local
        How its clients fine-tune.
    saturated
        The share of samples on which the losses of all predicting models reach their bound.
    clients
        Its arrays by client.
    """
    lines = []
    if saturated > _MOST_SATURATED:
        lines.append(
            f"losses reach their bound ({loss_bound}) on {100 * saturated:.0f} % of the samples, which then say little "
            "about the models: scale the targets, or choose another loss_bound"
        )
    if local is not None and local.rate > 0 and local.warm_up >= rounds:
        lines.append(
            f"warm_up = {local.warm_up}, but the run has {counted(rounds, 'round')}: nothing is fine-tuned; "
            "lower it, or run longer"
        )
    if 1 < rounds <= interval:
        lines.append(
            f"interval = {interval}, but the run has {rounds} rounds: clients choose once, before they learn anything; "
            "lower it, or run longer"
        )
    if "frozen_score" in clients:
        members = took_part(clients)
        lines += _worse_than_frozen(clients["score"][members], clients["frozen_score"][members], metric)
    return lines


def quarantined_models(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The models that diverged, and the round of each, from one record per round."""
    return [{"model": name, "round": line["round"]} for line in lines for name in line.get("quarantined", ())]


def divergence_warnings(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings about models that diverged, and updates that were left out, from one record per round."""
    quarantined = quarantined_models(lines)
    found = [quarantine_line(quarantined)] if quarantined else []
    clients = Counter(name for line in lines for name in line.get("left_out", ()))
    if clients:
        most = ", ".join(name for name, _ in clients.most_common(_MOST_NAMED))
        more = f" and {len(clients) - _MOST_NAMED} more" if len(clients) > _MOST_NAMED else ""
        found.append(f"updates that were not finite were left out, of clients {most}{more}")
    return found


def quarantine_line(models: Sequence[Mapping[str, Any]]) -> str:
    """What is said about models that diverged.

    >>> quarantine_line([{"model": "net3", "round": 12}])[:72]
    'quarantined because their updates were not finite: net3 (since round 12)'
    """
    named = ", ".join(f"{each['model']} (since round {each['round']})" for each in models)
    return (
        f"quarantined because their updates were not finite: {named}; they keep their last finite versions and are not "
        "fine-tuned any more; lower the fine-tuning rate"
    )


def mixed_bounds(runs: Sequence[Result]) -> list[str]:
    """A warning about runs whose regrets are sums of different losses, raw or bounded in different ways."""
    by_bound: dict[str, list[str]] = {}
    for run in runs:
        if run.figures["regret"] is not None:
            by_bound.setdefault(loss_bound_of(run), []).append(run.name)
    if len(by_bound) < 2:
        return []
    listed = "; ".join(f"{bound}: {', '.join(names)}" for bound, names in sorted(by_bound.items()))
    return [f"regrets are not comparable, because the losses are bounded differently ({listed})"]


def summarise_warnings(runs: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The warnings of many runs, each with its name, in few lines: those of runs with one name differ in figures only.

    A line that all of them have is about none in particular.

    >>> summarise_warnings([("a", ["12 % lost"]), ("a", ["13 % lost"]), ("b", ["all lost"]), ("c", ["all lost"])])
    ['a: 12 % lost (similarly in 1 more)', 'b, c: all lost']
    >>> summarise_warnings([("a", ["rows dropped"]), ("b", ["rows dropped", "all lost"])])
    ['rows dropped', 'b: all lost']
    """
    runs = list(runs)
    count = Counter(line for _, lines in runs for line in {*lines})
    shown: dict[str, list[str]] = {line: [] for _, lines in runs for line in lines if count[line] == len(runs)}
    similar: dict[tuple[str, str], list[str]] = {}
    for name, lines in runs:
        for line in lines:
            if line not in shown:
                similar.setdefault((name, re.sub(r"[\d.]+", "0", line)), []).append(line)
    for (name, _), found in similar.items():
        more = f" (similarly in {len(found) - 1} more)" if len(found) > 1 else ""
        shown.setdefault(found[0] + more, []).append(name)
    return [f"{', '.join(names)}: {line}" if any(names) else line for line, names in shown.items()]


def loss_bound_of(run: Result) -> str:
    """How a run's selection loss is bounded; runs of earlier versions tell it by their settings."""
    return str(run.figures.get("loss_bound") or run.config.settings.get("loss_bound", "raw"))


def _worse_than_frozen(score: AnyArray, frozen: AnyArray, metric: str) -> list[str]:
    """Whether the mean difference over clients exceeds its noise, two standard errors, which one client cannot tell."""
    lost = frozen - score if metric == "accuracy" else score - frozen
    if lost.size < 2 or not np.isfinite(lost).all():
        return []
    if not float(lost.mean()) > _STANDARD_ERRORS * float(lost.std(ddof=1)) / math.sqrt(lost.size):
        return []
    return [
        f"fine-tuning makes predictions worse: {metric} {float(score.mean()):.4g}, with the frozen dictionary "
        f"{float(frozen.mean()):.4g}; lower its rate, or set it to 0"
    ]
