"""The result of a simulation, from what it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ofms.core.typing import AnyArray, Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.runs.config import RunConfig
from ofms.runs.figures import (
    best_score,
    config_figures,
    drift_figures,
    mean_of,
    random_score,
    stream_figures,
    took_part,
)
from ofms.runs.result import Result
from ofms.runs.rounds import columns_of


def result_of(
    config: RunConfig,
    *,
    metric: str,
    clients: Mapping[str, AnyArray],
    history: Mapping[str, AnyArray],
    lines: Sequence[Mapping[str, Any]],
    bound: Floats | None,
    not_covered: str,
    revision: str,
    models: Sequence[str],
    seconds: float,
    stream: Stream,
    further: Mapping[str, Any],
    folder: Path | None = None,
    dictionary: Dictionary | None = None,
) -> Result:
    """The result of a simulation, from its measured arrays.

    Parameters
    ----------
    lines
        One record per round, as `metrics.jsonl` keeps them.
    bound
        [N] upper bound on each client's expected cumulative regret, or None; then `not_covered` says why.
    revision, models
        Fingerprint of the dictionary and its models' names, in the order of every array's last axis.
    further
        Other figures, such as warnings.
    dictionary
        The models after the run.
    """
    arrays = dict(clients) | ({} if bound is None else {"bound": bound})
    scores = arrays.get("model_score")
    columns, members = columns_of(lines), took_part(arrays)
    figures = config_figures(config) | {
        "metric": metric,
        "mean": float(arrays["score"][members].mean()),
        "std": float(arrays["score"][members].std()),
        "regret": mean_of(arrays.get("regret"), members),
        "bound": mean_of(bound, members),
        "not_covered": not_covered or None,
        "best_in_hindsight": None if scores is None else mean_of(best_score(scores, metric), members),
        "random_model": None if scores is None else mean_of(random_score(scores), members),
        "frozen": mean_of(arrays.get("frozen_score"), members),
        "groups": mean_of(columns["groups"]),
        "bytes_down": int(arrays["down"].sum()),
        "bytes_up": int(arrays["up"].sum()),
        "most_bytes_held": int(arrays["most_held"].max()),
        "revision": revision,
        "models": list(models),
        "seconds": seconds,
        "client_seconds": mean_of(arrays.get("seconds"), members),
        "folder": None if folder is None else str(folder),
    }
    figures |= stream_figures(stream) | drift_figures(config, arrays, stream.changes) | dict(further)
    name = config.policy if folder is None else folder.name
    return Result(config, figures, arrays, columns, dict(history), folder, name, dictionary)
