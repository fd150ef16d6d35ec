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


def describe_dictionary(dictionary: Dictionary) -> dict[str, Any]:
    """Models, costs, the smallest budget, and the number of clusters for several budgets."""
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
    }


def _why_not_deployable(dictionary: Dictionary) -> str | None:
    """Why devices cannot use a dictionary; None if they can."""
    try:
        dictionary.require_deployable()
    except InvalidInput as error:
        return str(error)
    return None


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
        f"deployable: {'yes' if reason is None else f'no: {reason}'}"
    )


def format_range(bounds: list[int]) -> str:
    """An exact number, or its known range.

    >>> format_range([5, 5]), format_range([5, 6])
    ('5', '5 to 6')
    """
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"
