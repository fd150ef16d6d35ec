"""A finished run: configuration, figures, arrays by client, columns by round."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Floats
from ofms.data.stream import Stream
from ofms.drawing.charts import Curve, curves_figure
from ofms.runs.config import RunConfig
from ofms.runs.figures import (
    best_score,
    config_figures,
    drift_figures,
    mean_of,
    phase_mean,
    random_score,
    stream_figures,
)
from ofms.runs.folder import RunFolder, read_run_folder, require_free
from ofms.runs.formatting import REGRET_LABEL, notebook_html, regret_curve, result_table
from ofms.runs.frames import frame_of
from ofms.runs.rounds import columns_of, lines_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run.

    Attributes
    ----------
    config
        The resolved configuration.
    figures
        The run in one flat record, as in `--json` and `summary.json`: `metric` (`accuracy` or `mse`),
        its `mean` and `std` over clients, mean `regret` and `bound` over clients, bytes, seconds, and so on.
    clients
        Arrays with a leading client axis: `score` (the metric), `regret`, `bound`, `model_score`, `down`, `up`,
        `most_held`, `held_share`, `prediction_share`, `budget`; on the loopback `seconds`, processor time per client;
        with drift `dynamic_regret`, `phase_best` (each phase's best model) and `recovery` (rounds, after each change).
    rounds
        Columns with one value per round, such as `mean` and `regret`; `regret_10`, `regret_50` and `regret_90` are
        quantiles over clients.
    history
        Round by round, for the first clients only: `score`, `regret`, `probability`, `held`, `prediction_weights`.
    folder
        The run's folder, if it is written to one.
    name
        Label in tables and charts.
    """

    config: RunConfig
    figures: dict[str, Any]
    clients: dict[str, AnyArray]
    rounds: dict[str, AnyArray]
    history: dict[str, AnyArray] = field(default_factory=dict)
    folder: Path | None = None
    name: str = ""

    @classmethod
    def from_measurement(
        cls,
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
        """
        arrays = dict(clients) | ({} if bound is None else {"bound": bound})
        scores = arrays.get("model_score")
        columns = columns_of(lines)
        figures = config_figures(config) | {
            "metric": metric,
            "mean": float(arrays["score"].mean()),
            "std": float(arrays["score"].std()),
            "regret": mean_of(arrays.get("regret")),
            "bound": mean_of(bound),
            "not_covered": not_covered or None,
            "best_in_hindsight": None if scores is None else mean_of(best_score(scores, metric)),
            "random_model": None if scores is None else mean_of(random_score(scores)),
            "frozen": mean_of(arrays.get("frozen_score")),
            "groups": mean_of(columns["groups"]),
            "bytes_down": int(arrays["down"].sum()),
            "bytes_up": int(arrays["up"].sum()),
            "most_bytes_held": int(arrays["most_held"].max()),
            "revision": revision,
            "models": list(models),
            "seconds": seconds,
            "client_seconds": mean_of(arrays.get("seconds")),
            "folder": None if folder is None else str(folder),
        }
        figures |= stream_figures(stream) | drift_figures(config, arrays, stream.changes) | dict(further)
        name = config.policy if folder is None else folder.name
        return cls(config, figures, arrays, columns, dict(history), folder, name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a finished run from its folder, or a cell of a reproduction from its file."""
        path = Path(os.fspath(path))
        if path.is_file():
            from ofms.runs.cell_file import read_cell

            return read_cell(path)
        parts = read_run_folder(path)
        return cls(
            parts.config,
            parts.figures,
            parts.clients,
            columns_of(parts.lines),
            parts.history,
            path,
            path.resolve().name,
        )

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the run into a new folder, as a run with `out` does."""
        path = require_free(Path(os.fspath(folder)))
        if "models" not in self.figures:
            raise InvalidInput("save", folder, "a cell stores only a part of its run; run its command to get a folder")
        with RunFolder(path, self.config) as run:
            run.start()
            run.on_rounds(lines_of(self.rounds))
            run.on_finish(self)
        return path

    @property
    def metric(self) -> str:
        """`accuracy` or `mse`."""
        return str(self.figures["metric"])

    @property
    def score(self) -> Floats:
        """[N] the metric of each client."""
        return self.clients["score"]

    @property
    def mean(self) -> float:
        return float(self.score.mean())

    @property
    def std(self) -> float:
        """Population standard deviation over clients."""
        return float(self.score.std())

    @property
    def hindsight(self) -> bool:
        """Whether the losses of all models were measured, which regret requires."""
        return "regret" in self.clients

    @property
    def drifts(self) -> bool:
        """Whether the stream drifts and dynamic regret was measured."""
        return "dynamic_regret" in self.figures

    @property
    def client_names(self) -> list[str]:
        """The clients' names, or their numbers if they have none."""
        return self.figures.get("client_names") or [str(client) for client in range(len(self.score))]

    def regret(self) -> Floats:
        """[N] cumulative regret of each client, in the selection loss."""
        if not self.hindsight:
            raise InvalidInput("hindsight", False, "regret requires the losses of all models; leave hindsight on")
        return self.clients["regret"]

    @property
    def bound(self) -> Floats | None:
        """[N] upper bound on the expected cumulative regret; None if the theorems do not cover the run.

        Also None for cells and runs of format 1, of which only the mean over clients is known: `figures["bound"]`.
        """
        return self.clients.get("bound")

    @property
    def best_in_hindsight(self) -> Floats | None:
        """[N] the metric of each client's best single model of this run."""
        scores = self.clients.get("model_score")
        return None if scores is None else best_score(scores, self.metric)

    @property
    def best_of_phases(self) -> Floats | None:
        """[N] the metric of each client's best models, one per phase of a stream that drifts."""
        scores = self.clients.get("phase_best")
        return None if scores is None else phase_mean(scores, self.figures["changes"], self.config.rounds)

    @property
    def random_model(self) -> Floats | None:
        """[N] the expected metric of a uniformly random model of this run."""
        scores = self.clients.get("model_score")
        return None if scores is None else random_score(scores)

    def table(self) -> str:
        """The figures as a text table, with a random model and the best one in hindsight for comparison."""
        return result_table(self)

    def plot(self) -> Figure:
        """Average regret over rounds as a matplotlib figure; without hindsight, the metric."""
        if self.hindsight:
            return curves_figure([("", [regret_curve(self.config.policy, self)])], ylabel=REGRET_LABEL)
        return curves_figure([("", [Curve(self.config.policy, self.rounds["mean"])])], ylabel=self.metric)

    def to_pandas(self, rows: Literal["clients", "rounds"] = "clients") -> pandas.DataFrame:
        """One row per client, with its score, regret, bytes and budget; or one row per round."""
        return frame_of(self, rows)

    def __repr__(self) -> str:
        config = self.config
        size = f"{config.experiment}, {config.clients} clients, {config.rounds} rounds, seed {config.seed}"
        return f"{size}, {self.figures['seconds']:.1f} s\n{self.table()}"

    def _repr_html_(self) -> str:
        """For notebooks: the table, and the plot if matplotlib is installed."""
        return notebook_html(self)


def load(path: str | os.PathLike[str]) -> Result:
    """Read a finished run from its folder, or a cell of a reproduction from its file."""
    return Result.load(path)
