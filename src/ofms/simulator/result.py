"""What a run came to."""

from __future__ import annotations

import html
import io
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Floats
from ofms.runs.config import RunConfig
from ofms.runs.folder import RunFolder, require_free
from ofms.simulator.metrics import Line, best_score

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run.

    Attributes
    ----------
    metric
        `accuracy` or `mse`.
    clients
        Arrays with a leading client axis: `score` (the metric), `regret`, `model_score`, `down`, `up`, `most_held`,
        `held_share`, `prediction_share`, `budget`; on the loopback `seconds`, the processor time of each.
    history
        Round by round, for the first clients only: `score`, `regret`, `probability`, `held`, `prediction_weights`.
    lines
        One record a round.
    bound
        [N] upper bound on the expected cumulative regret, or None; then `not_covered` says why.
    revision
        The fingerprint of the dictionary that the run started from.
    models
        The models' names, in the order of every array's last axis.
    folder
        Where the run was written, if it was.
    """

    config: RunConfig
    metric: str
    clients: dict[str, AnyArray]
    history: dict[str, AnyArray]
    lines: list[Line]
    seconds: float
    bound: Floats | None
    not_covered: str
    revision: str
    models: tuple[str, ...] = ()
    folder: Path | None = None

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
        """Whether the losses of all models were measured, which regret needs."""
        return "regret" in self.clients

    def regret(self) -> Floats:
        """[N] cumulative regret of each client, in the loss of selection."""
        if not self.hindsight:
            raise InvalidInput("hindsight", False, "regret needs the losses of all models; leave hindsight on")
        return self.clients["regret"]

    @property
    def best_in_hindsight(self) -> Floats | None:
        """[N] the metric of each client's best single model of this run."""
        scores = self.clients.get("model_score")
        return None if scores is None else best_score(scores, self.metric)

    @property
    def random_model(self) -> Floats | None:
        """[N] the expected metric of a uniformly random model of this run."""
        scores = self.clients.get("model_score")
        return None if scores is None else scores.mean(axis=1)

    def over_rounds(self, name: str) -> Floats:
        """[T] one figure of the lines, such as `mean` or `regret`."""
        return np.array([line[name] for line in self.lines])

    def __repr__(self) -> str:
        from ofms.simulator.formatting import result_table

        config = self.config
        size = f"{config.experiment}, {config.clients} clients, {config.rounds} rounds, seed {config.seed}"
        return f"{size}, {self.seconds:.1f} s\n{result_table(self)}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table, and the regret over rounds where matplotlib is there."""
        text = html.escape(repr(self))
        picture = ""
        if self.hindsight and find_spec("matplotlib") is not None:
            buffer = io.StringIO()
            self.plot().savefig(buffer, format="svg")
            picture = buffer.getvalue()[buffer.getvalue().index("<svg") :]
        return f"<pre>{text}</pre>{picture}"

    def to_pandas(self, rows: Literal["clients", "rounds"] = "clients") -> pandas.DataFrame:
        """A row a client, with its score, regret, bytes and budget; or a row a round, with the figures of the lines."""
        try:
            import pandas
        except ImportError:
            raise InvalidInput("to_pandas", rows, "it needs pandas: pip install 'ofms[experiments]'") from None
        if rows == "rounds":
            return pandas.DataFrame(self.lines).set_index("round")
        if rows != "clients":
            raise InvalidInput("rows", rows, "use clients or rounds")
        table = pandas.DataFrame({name: values for name, values in self.clients.items() if values.ndim == 1})
        return table.rename_axis("client")

    def plot(self) -> Figure:
        """The average regret over rounds, as a matplotlib figure; without hindsight, the metric."""
        from ofms.drawing.charts import Curve, curves_figure
        from ofms.simulator.formatting import REGRET_LABEL, regret_curve

        if self.hindsight:
            return curves_figure([("", [regret_curve(self.config.policy, self)])], ylabel=REGRET_LABEL)
        return curves_figure([("", [Curve(self.config.policy, self.over_rounds("mean"))])], ylabel=self.metric)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the run into a new folder, as a run with `out` does."""
        path = require_free(Path(os.fspath(folder)))
        with RunFolder(path, self.config) as run:
            run.on_rounds(self.lines)
            run.on_finish(self)
        return path

    def summary(self) -> dict[str, Any]:
        """The figures in one flat record, as `--json` prints it."""
        best, random = self.best_in_hindsight, self.random_model
        frozen = self.clients.get("frozen_score")
        return {
            "experiment": self.config.experiment,
            "policy": self.config.policy,
            "preset": self.config.preset,
            "seed": self.config.seed,
            "metric": self.metric,
            "mean": self.mean,
            "std": self.std,
            "regret": float(self.regret().mean()) if self.hindsight else None,
            "bound": None if self.bound is None else float(self.bound.mean()),
            "not_covered": self.not_covered or None,
            "best_in_hindsight": None if best is None else float(best.mean()),
            "random_model": None if random is None else float(random.mean()),
            "frozen": None if frozen is None else float(frozen.mean()),
            "rounds": self.config.rounds,
            "clients": self.config.clients,
            "interval": self.config.interval,
            "budget": self.config.budget,
            "bandwidth": self.config.bandwidth,
            "bytes_down": int(self.clients["down"].sum()),
            "bytes_up": int(self.clients["up"].sum()),
            "most_bytes_held": int(self.clients["most_held"].max()),
            "revision": self.revision,
            "models": list(self.models),
            "seconds": self.seconds,
            "folder": None if self.folder is None else str(self.folder),
        }
