"""A finished run: configuration, figures, arrays by client, columns by round."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Flags, Floats
from ofms.core.words import counted
from ofms.drawing.charts import Curve, curves_figure
from ofms.plugins import NO_TRUST, Trust, trust_of
from ofms.runs.config import RunConfig
from ofms.runs.figures import best_score, phase_mean, random_score, took_part
from ofms.runs.folder import MODELS, RunFolder, read_run_folder, require_free
from ofms.runs.formatting import REGRET_LABEL, format_score, notebook_html, regret_curve, result_table
from ofms.runs.frames import Rows, frame_of, write_csv
from ofms.runs.rounds import columns_of, lines_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from ofms.models.dictionary import Dictionary


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
        in a fleet that changes `rounds`, in how many of them each client was there (of one that never was, measurements
        are NaN); with drift `dynamic_regret`, `phase_best` (each phase's best model) and `recovery` (rounds, after each
        change).
    rounds
        Columns with one value per round, such as `mean` and `regret`; `regret_10`, `regret_50` and `regret_90` are
        quantiles over clients.
    history
        Round by round, for the first clients only: `score`, `regret`, `probability`, `held`, `prediction_weights`.
    folder
        The run's folder, if it is written to one.
    name
        Label in tables and charts.
    dictionary
        The dictionary after the run; None for a run that was loaded from a folder.
    trusted
        Packages whose networks `models` may build when it reads them from the run's folder.
    """

    config: RunConfig
    figures: dict[str, Any]
    clients: dict[str, AnyArray]
    rounds: dict[str, AnyArray]
    history: dict[str, AnyArray] = field(default_factory=dict)
    folder: Path | None = None
    name: str = ""
    dictionary: Dictionary | None = None
    trusted: Trust = NO_TRUST

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: Trust | Iterable[str] = ()) -> Result:
        """Read a finished run from its folder, or a cell of a reproduction from its file.

        Parameters
        ----------
        trust
            Packages whose networks `models` may build, if the run saved its models and they are not of the zoo.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidInput("run", type(path).__name__, "give the path of a run's folder")
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
            trusted=trust_of(trust),
        )

    def save(self, folder: str | os.PathLike[str], *, models: bool = False) -> Path:
        """Write the run and its page into a new folder, as a run with `out` does; with its `models` if wanted."""
        path = require_free(Path(os.fspath(folder)))
        if "models" not in self.figures:
            raise InvalidInput("save", folder, "a cell stores only a part of its run; run its command to get a folder")
        dictionary = self.models if models else None
        if dictionary is not None:
            dictionary.require_storable()
        config = msgspec.structs.replace(self.config, save_models=True if models else None)
        with RunFolder(path, config) as run:
            run.start()
            run.on_rounds(lines_of(self.rounds))
            if dictionary is not None:
                run.write_models(dictionary)
            run.on_finish(self)
            run.write_page()
        return path

    @property
    def models(self) -> Dictionary:
        """The dictionary after the run: its fine-tuned models, or those it began with if nothing fine-tunes them."""
        if self.dictionary is not None:
            return self.dictionary
        if self.folder is None or not (self.folder / MODELS).exists():
            remedy = "the run did not save its models; run it again with --save-models, or save_models=True"
            raise InvalidInput("models", self.folder or self.name, remedy)
        from ofms.models.dictionary import Dictionary

        return Dictionary.read(self.folder / MODELS, trust=self.trusted)

    @property
    def metric(self) -> str:
        """`accuracy` or `mse`."""
        return str(self.figures["metric"])

    @property
    def score(self) -> Floats:
        """[N] the metric of each client; NaN for a client that was never in the fleet."""
        return self.clients["score"]

    @property
    def took_part(self) -> Flags:
        """[N] whether each client was in the fleet for any round; means are over those that were."""
        return took_part(self.clients)

    @property
    def mean(self) -> float:
        return float(self.score[self.took_part].mean())

    @property
    def std(self) -> float:
        """Population standard deviation over clients."""
        return float(self.score[self.took_part].std())

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

    def to_pandas(self, rows: Rows = "clients") -> pandas.DataFrame:
        """A table by name of `clients` (score, regret, bytes, budget), by round, or by name of `models`.

        `weights` has one row per client and model: how often it was held, its weight in predictions, its own score.
        """
        return frame_of(self, rows)

    def to_csv(self, path: str | os.PathLike[str], rows: Rows = "clients") -> Path:
        """Write the same table as a CSV file; it needs no pandas."""
        write_csv(self, Path(os.fspath(path)), rows)
        return Path(os.fspath(path))

    def __repr__(self) -> str:
        config, score = self.config, format_score(self.score, self.metric)
        size = f"{counted(config.clients, 'client')} × {counted(config.rounds, 'round')}, seed {config.seed}"
        return f"Result({config.title}, {config.policy}, {size}: {self.metric} {score})"

    def __str__(self) -> str:
        """The experiment and the table."""
        config = self.config
        clients, rounds = counted(config.clients, "client"), counted(config.rounds, "round")
        size = f"{config.experiment}, {clients}, {rounds}, seed {config.seed}"
        return f"{size}, {self.figures['seconds']:.1f} s\n{self.table()}"

    def _repr_html_(self) -> str:
        """For notebooks: the table, and the plot if matplotlib is installed."""
        return notebook_html(self)


def load(path: str | os.PathLike[str], *, trust: Trust | Iterable[str] = ()) -> Result:
    """Read a finished run from its folder, or a cell of a reproduction from its file.

    `trust` names packages whose networks `Result.models` may build.
    """
    return Result.load(path, trust=trust)
