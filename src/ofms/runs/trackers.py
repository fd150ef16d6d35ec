"""Trackers: observers that log a run's metrics to TensorBoard or MLflow."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.runs.config import RunConfig

if TYPE_CHECKING:
    from ofms.runs.result import Result

# Logged per round, if present.
_FIGURES = ("mean", "std", "score", "frozen", "regret", "regret_std", "down", "up", "held", "groups")


class Tracker(Protocol):
    """Observer that logs a run: its configuration at construction, then its rounds, then its result."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_rounds(self, lines: Sequence[Mapping[str, Any]]) -> None: ...

    def on_finish(self, result: Result) -> None: ...


class TensorBoard:
    """Event files in the subfolder `tensorboard` of the run; view them with `tensorboard --logdir runs`."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {line}" for line in config.to_toml().splitlines()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def on_rounds(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            for name, value in _figures(line).items():
                self._writer.add_scalar(name, value, line["round"])

    def on_finish(self, result: Result) -> None:
        for name, value in _numbers(result.figures).items():
            self._writer.add_scalar(f"final/{name}", value)


class MLflow:
    """A run of the experiment `ofms` at MLFLOW_TRACKING_URI; by default in `mlflow.db` of the current folder."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._mlflow: Any = mlflow
        mlflow.set_experiment("ofms")
        mlflow.start_run(run_name=folder.name)
        fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "settings"}
        mlflow.log_params({key: value for key, value in (fields | config.settings).items() if value is not None})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mlflow.end_run("FINISHED" if kind is None else "KILLED")

    def on_rounds(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            self._mlflow.log_metrics(_figures(line), step=line["round"])

    def on_finish(self, result: Result) -> None:
        self._mlflow.log_metrics({f"final_{name}": value for name, value in _numbers(result.figures).items()})


_KINDS: dict[str, tuple[Callable[[RunConfig, Path], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
}


def require_tracker(name: str) -> None:
    """Reject an unknown or missing tracker before the run starts."""
    if name not in _KINDS:
        raise InvalidInput("tracker", name, suggest(name, _KINDS))
    if find_spec(_KINDS[name][1]) is None:
        raise InvalidInput("tracker", name, f"it is not installed: pip install 'ofms[{name}]'")


def start_tracker(name: str, config: RunConfig, folder: Path) -> Tracker:
    """Start a tracker for a run that is written to a folder."""
    require_tracker(name)
    try:
        return _KINDS[name][0](config, folder)
    except Exception as error:
        # Tracker libraries raise arbitrary errors, for example for an unreachable store: report one line.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInput("tracker", name, f"it cannot be started ({reason}); fix it or leave it out") from None


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(line[name]) for name in _FIGURES if line.get(name) is not None}


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
