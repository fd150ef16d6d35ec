"""Whether the parts of a run's folder are of the types and sizes that tables, charts and pages rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from ofms.core.typing import AnyArray
from ofms.runs.config import RunConfig
from ofms.runs.rounds import EVENTS
from ofms.storage.typed import from_values

_COLUMNS = ("round", "mean", "std", "down", "up", "held", "groups")
_BY_MODEL = ("held_share", "prediction_share", "model_score")
_CLIENTS = ("score", "budget", "most_held", "held_share", "prediction_share")
MOST_SCORE = 1e100
_HISTORY = ("probability", "prediction_weights")


class _Figures(msgspec.Struct):
    """A run's summary; a number that is not finite is null in JSON."""

    metric: Literal["accuracy", "mse"]
    mean: float | None
    std: float | None
    regret: float | None
    bound: float | None
    best_in_hindsight: float | None
    random_model: float | None
    bytes_down: int
    bytes_up: int
    revision: str
    models: list[str]
    seconds: float
    frozen: float | None = None
    groups: float | None = None
    client_seconds: float | None = None
    not_covered: str | None = None
    loss_bound: str | None = None
    client_names: list[str] | None = None
    warnings: list[str] = []
    quarantined: list[_Quarantined] = []
    events: list[str] = []


class _Quarantined(msgspec.Struct):
    """A model that diverged, and when."""

    model: str
    round: int


class _DriftFigures(msgspec.Struct):
    """The figures of a run whose stream drifts."""

    changes: list[int]
    dynamic_regret: float | None
    recovery: float | None
    best_of_phases: float | None
    phase_best: list[float | None]


class _Line(msgspec.Struct):
    """What metrics of a round are no plain numbers; the last ones are events, which few rounds have."""

    regret_quantiles: tuple[float | None, float | None, float | None] | None = None
    left_out: list[str] = []
    quarantined: list[str] = []


def require_sound_run(
    config: RunConfig,
    figures: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    clients: Mapping[str, AnyArray],
    history: Mapping[str, AnyArray],
) -> None:
    """ValueError that names the first part of a run that is missing or malformed."""
    missing = [name for name in _Figures.__struct_fields__[:12] if name not in figures]
    missing += [name for name in _COLUMNS if not lines or any(name not in line for line in lines)]
    missing += [name for name in _CLIENTS if name not in clients]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    models = len(_converted(figures, _Figures).models)
    if "dynamic_regret" in figures:
        _require_changes(_converted(figures, _DriftFigures), config.rounds)
    require_lines(lines, config.rounds, regret="regret" in clients)
    for name, array in clients.items():
        shape = (config.clients, models) if name in _BY_MODEL else (config.clients,)
        found = array.shape if name in (*_CLIENTS, *_BY_MODEL, "rounds") else array.shape[:1]
        if array.dtype.kind not in "fiub" or found != shape:
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)} for {config.clients} clients")
    if "rounds" in clients and not clients["rounds"].max() > 0:
        raise ValueError("no client was in the fleet")
    # A squared error of single-precision numbers is far below this, and its square does not overflow.
    if (np.abs(np.nan_to_num(clients["score"])) > MOST_SCORE).any():
        raise ValueError(f"score has numbers beyond {MOST_SCORE:g}")
    if not models or clients["budget"].min() < 1:
        raise ValueError("models or budgets are missing")
    names = figures.get("client_names")
    if names is not None and len(names) != config.clients:
        raise ValueError("client_names are not one for each client")
    _require_history(history, models, config)


def _converted(figures: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return from_values(dict(figures), kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _require_changes(drift: _DriftFigures, rounds: int) -> None:
    edges = [0, *drift.changes, rounds]
    if any(stop <= first for first, stop in pairwise(edges)):
        raise ValueError("changes are not ascending rounds of the run")
    if len(drift.phase_best) != len(edges) - 1:
        raise ValueError("phase_best is not one for each phase")


def require_lines(lines: Sequence[Mapping[str, Any]], rounds: int, *, regret: bool = False) -> None:
    """ValueError unless every line has the numbers of its round, and the same names as the first."""
    if [line.get("round") for line in lines] != [*range(1, rounds + 1)]:
        raise ValueError(f"its metrics are not those of {rounds} rounds")
    needed = {*lines[0], *(("regret", "regret_quantiles") if regret else ())} - {*EVENTS}
    for number, line in enumerate(lines, start=1):
        values = [value for name, value in line.items() if name not in _Line.__struct_fields__]
        if not all(map(_is_plain, values)) or line.keys() - {*EVENTS} != needed:
            raise ValueError(f"the metrics of round {number} are malformed")
        try:
            from_values(dict(line), _Line)
        except msgspec.ValidationError as error:
            raise ValueError(f"round {number}: {error}") from None


def _is_plain(value: object) -> bool:
    """A number that tables can hold, or null."""
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _require_history(history: Mapping[str, AnyArray], models: int, config: RunConfig) -> None:
    if any(array.dtype.kind not in "fiub" for array in history.values()):
        raise ValueError("the history has arrays that are not numbers")
    if not any(name in history for name in _HISTORY):
        return
    if not all(name in history for name in (*_HISTORY, "round")):
        raise ValueError("a part of the history is missing")
    exchanges = history["round"].shape
    for name in _HISTORY:
        shape = history[name].shape
        if len(shape) != 3 or shape[:1] != exchanges or not shape[0] or shape[1] > config.clients or shape[2] != models:
            raise ValueError(f"{name} of the history has shape {list(shape)}")
    if history["probability"].shape != history["prediction_weights"].shape or (np.diff(history["round"]) <= 0).any():
        raise ValueError("the history has arrays of different sizes")
