"""Description of a dictionary: models, costs, smallest budget, clusters by budget, deployability."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.packing import fewest_clusters, partition_models, smallest_budget
from ofms.drawing.tables import format_table
from ofms.models.dictionary import Dictionary
from ofms.runs.units import human_bytes

_BUDGETS_SHOWN = (2, 3, 5, 10)


def describe_dictionary(dictionary: Dictionary, *, edge: bool = False) -> dict[str, Any]:
    """Models, costs, the smallest budget, and the number of clusters for several budgets.

    With `edge`, networks are exported to find those that need a device with PyTorch.
    """
    needing_torch = _needing_torch(dictionary) if edge else None
    catalogue = dictionary.catalogue()
    largest = int(catalogue.storage.max())
    least = smallest_budget(catalogue.storage)
    budgets = []
    for times in _BUDGETS_SHOWN:
        budget = times * largest
        if budget < least:
            continue
        clusters = partition_models(catalogue.storage, np.array([budget])).clusters[0]
        fewest = fewest_clusters(catalogue.storage, budget)
        budgets.append(
            {
                "budget": times,
                "bytes": budget,
                "most_clusters": int(clusters.max()),
                "fewest_clusters": [fewest.lower, fewest.upper],
            }
        )
    return {
        "task": dictionary.task,
        "revision": catalogue.revision,
        "models": [
            {
                "name": model.name,
                "architecture": model.architecture,
                "values": model.values,
                "storage": model.storage,
                "upload": model.upload,
            }
            for model in dictionary.models
        ],
        "smallest_budget": least,
        "budgets": budgets,
        "not_deployable": _why_not_deployable(dictionary),
    } | ({} if needing_torch is None else {"needing_torch": needing_torch})


def _why_not_deployable(dictionary: Dictionary) -> str | None:
    """Why devices cannot use a dictionary; None if they can."""
    try:
        dictionary.require_deployable()
    except InvalidInput as error:
        return str(error)
    return None


def _needing_torch(dictionary: Dictionary) -> list[dict[str, str]]:
    """The models whose networks have no ONNX graphs, and why; each architecture is tried once."""
    from ofms.compute.onnx_export import NotExported, export_graphs, require_exporter
    from ofms.compute.onnx_graphs import graphs_key

    require_exporter()
    reasons: dict[str, str | None] = {}
    for model in dictionary.models:
        key = graphs_key(model, dictionary.task)
        if key not in reasons:
            try:
                export_graphs(model, dictionary.task)
                reasons[key] = None
            except NotExported as error:
                reasons[key] = str(error)
    found = [(model, reasons[graphs_key(model, dictionary.task)]) for model in dictionary.models]
    return [
        {"name": model.name, "architecture": model.architecture, "reason": reason}
        for model, reason in found
        if reason is not None
    ]


def dictionary_tables(facts: dict[str, Any]) -> str:
    """The description as two tables."""
    largest = max(model["storage"] for model in facts["models"])
    models = format_table(
        ["model", "architecture", "values", "storage", "upload", "cost"],
        [
            [
                model["name"],
                model["architecture"],
                f"{model['values']:,}",
                human_bytes(model["storage"]),
                human_bytes(model["upload"]),
                f"{model['storage'] / largest:.3f}",
            ]
            for model in facts["models"]
        ],
    )
    budgets = format_table(
        ["budget", "bytes", "most clusters", "μ"],
        [
            [
                str(row["budget"]),
                human_bytes(row["bytes"]),
                str(row["most_clusters"]),
                format_range(row["fewest_clusters"]),
            ]
            for row in facts["budgets"]
        ],
    )
    least, reason = facts["smallest_budget"], facts["not_deployable"]
    return (
        f"{len(facts['models'])} models for {facts['task']}, revision {facts['revision']}\n\n{models}\n\n"
        f"smallest budget: {least:,} bytes ({least / largest:.3f} of the largest model)\n\n{budgets}\n\n"
        f"deployable: {'yes' if reason is None else f'no: {reason}'}{_edge_lines(facts.get('needing_torch'))}"
    )


def _edge_lines(needing_torch: list[dict[str, str]] | None) -> str:
    """Which models need a device with PyTorch; nothing if it was not asked."""
    if needing_torch is None:
        return ""
    lines = [f"\n  {each['name']} ({each['architecture']}): {each['reason']}" for each in needing_torch]
    return "\non devices without PyTorch: " + ("".join(["no", *lines]) if lines else "yes")


def format_range(bounds: list[int]) -> str:
    """An exact number, or its known range.

    >>> format_range([5, 5]), format_range([5, 6])
    ('5', '5 to 6')
    """
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"
