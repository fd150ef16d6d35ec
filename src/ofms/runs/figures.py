"""The flat record of a run, from its configuration and its arrays by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats
from ofms.data.stream import Stream
from ofms.runs.config import RunConfig


def config_figures(config: RunConfig) -> dict[str, Any]:
    """The part of a run's flat record that its configuration determines."""
    names = ("experiment", "policy", "preset", "seed", "clients", "rounds", "interval", "budget", "bandwidth")
    drift = {} if config.drift is None else {"drift": config.drift}
    return {name: getattr(config, name) for name in names} | drift


def stream_figures(stream: Stream) -> dict[str, Any]:
    """The clients' names, if they have any, and what the user should know about the stream."""
    named = {"client_names": list(stream.names)} if stream.names else {}
    return named | ({"warnings": list(stream.warnings)} if stream.warnings else {})


def drift_figures(config: RunConfig, clients: Mapping[str, AnyArray], changes: Sequence[int]) -> dict[str, Any]:
    """The figures of a run whose stream changes: none without changes, only these without hindsight.

    Images that rotate never settle, so that a run on them has no rounds until recovered.
    """
    if not changes or "dynamic_regret" not in clients:
        return {"changes": list(changes)} if changes else {}
    return {
        "changes": list(changes),
        "dynamic_regret": mean_of(clients["dynamic_regret"]),
        "recovery": None if config.drift == "rotate" else mean_of(clients["recovery"]),
        "best_of_phases": mean_of(phase_mean(clients["phase_best"], changes, config.rounds)),
        "phase_best": clients["phase_best"].mean(axis=0).tolist(),
    }


def phase_mean(by_phase: Floats, changes: Sequence[int], rounds: int) -> Floats:
    """[N] the mean over rounds of a score by phase, [N, S]."""
    mean: Floats = by_phase @ np.diff([0, *changes, rounds]) / rounds
    return mean


def best_score(model_scores: Floats, metric: str) -> Floats:
    """[N] the score of each client's best single model; one that overflowed is not the best.

    >>> best_score(np.array([[0.5, 0.9, np.nan]]), "accuracy"), best_score(np.array([[0.5, 0.9, np.inf]]), "mse")
    (array([0.9]), array([0.5]))
    """
    higher = metric == "accuracy"
    known = np.where(np.isfinite(model_scores), model_scores, -np.inf if higher else np.inf)
    best = known.max(axis=1) if higher else known.min(axis=1)
    return np.where(np.isfinite(best), best, np.nan)


def random_score(model_scores: Floats) -> Floats:
    """[N] the expected score of a uniformly random model among those that did not overflow.

    >>> random_score(np.array([[0.5, 0.9, np.nan], [0.5, np.inf, np.nan]]))
    array([0.7, 0.5])
    """
    finite = np.isfinite(model_scores)
    count = finite.sum(axis=1)
    mean = np.full(count.shape, np.nan)
    np.divide(np.where(finite, model_scores, 0.0).sum(axis=1), count, out=mean, where=count > 0)
    return mean


def took_part(clients: Mapping[str, AnyArray]) -> Flags:
    """[N] whether each client was in the fleet for any round: all were, unless events changed it.

    >>> took_part({"score": np.array([0.5, np.nan]), "rounds": np.array([3, 0])})
    array([ True, False])
    """
    flags: Flags = np.ones(clients["score"].shape, dtype=np.bool_) if "rounds" not in clients else clients["rounds"] > 0
    return flags


def mean_of(values: AnyArray | None, among: Flags | None = None) -> float | None:
    """The mean over clients, all or `among` some; None if it was not measured."""
    return None if values is None else float((values if among is None else values[among]).mean())
