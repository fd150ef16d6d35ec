"""Data measured at sites: clients see some sites in time order, models are trained on others."""

from __future__ import annotations

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats
from ofms.data.drift import Drift, drifting
from ofms.data.stream import Dataset, Stream, TrainingSet

Rows = tuple[Floats, Floats]

STREAM_ROWS_PER_SITE = 10_000


def rows_needed(clients: int, rounds: int) -> int:
    """Rows to read from each of the two sites; at least those of the paper's run, so that all runs share one scale."""
    return max(-(-clients // 2) * rounds, STREAM_ROWS_PER_SITE)


def site_stream(sites: dict[str, Rows], *, clients: int, rounds: int) -> Stream:
    """Half of the clients at each of two sites; client i of a site sees `rounds` rows from row i · rounds.

    Feature vectors are divided by their largest Euclidean norm, targets scaled to [0, 1], both over all given rows.
    """
    at_first = -(-clients // 2)
    scaled = _scaled(list(sites.values()))
    x, y = [], []
    for name, count, (features, targets) in zip(sites, (at_first, clients - at_first), scaled, strict=True):
        if len(features) < at_first * rounds:
            raise InvalidInput(
                "rounds × clients",
                f"{rounds} × {clients}",
                f"{name} has {len(features):,} complete rows; request fewer",
            )
        x.append(features[: count * rounds].reshape(count, rounds, -1))
        y.append(targets[: count * rounds].reshape(count, rounds))
    return Stream(np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.float32), "regression")


def drifting_site_stream(dataset: Dataset, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
    """Clients that move to the other site, and see there the rows of the same rounds of a client of that site."""
    if drift == "rotate":
        raise InvalidInput("drift", drift, f"the inputs of {dataset.name} are not images; use another kind")
    at_first = -(-clients // 2)
    own = np.arange(clients)
    concepts = np.stack([own, np.where(own < at_first, own + at_first, own - at_first)], axis=1)
    return drifting(dataset.stream(clients=2 * at_first, rounds=rounds, seed=seed), concepts, drift, seed=seed)


def site_training_sets(sites: dict[str, Rows]) -> list[TrainingSet]:
    """One training set per site, all on the same scale."""
    return [
        TrainingSet(name.lower(), x.astype(np.float32), y.astype(np.float32))
        for name, (x, y) in zip(sites, _scaled(list(sites.values())), strict=True)
    ]


def _scaled(sites: list[Rows]) -> list[Rows]:
    longest = max(float(np.linalg.norm(features, axis=1).max()) for features, _ in sites)
    low = min(float(targets.min()) for _, targets in sites)
    high = max(float(targets.max()) for _, targets in sites)
    return [(features / longest, (targets - low) / (high - low)) for features, targets in sites]
