"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.typing import AnyArray, Floats
from ofms.runs.config import RunConfig
from ofms.simulator.measure import Line, best_score


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes
    ----------
    metric
        `accuracy` or `mse`.
    clients
        Arrays with a leading client axis: `score` (the metric), `regret`, `model_score`, `down`, `up`, `most_held`,
        `held_share`, `vote_share`, `budget`; on the loopback `seconds`, the processor time of each.
    history
        Round by round, for the first clients only: `score`, `regret`, `probability`, `held`, `vote`.
    lines
        One record a round.
    bound
        [N] upper bound on the expected cumulative regret, or None; then `not_covered` says why.
    revision
        The fingerprint of the dictionary that the run started from.
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
    def regret(self) -> Floats | None:
        """[N] cumulative regret in the loss of selection; None where hindsight was off."""
        return self.clients.get("regret")

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

    def summary(self) -> dict[str, Any]:
        """The figures in one flat record, as `--json` prints it."""
        regret, best, random = self.regret, self.best_in_hindsight, self.random_model
        return {
            "experiment": self.config.experiment,
            "policy": self.config.policy,
            "preset": self.config.preset,
            "seed": self.config.seed,
            "metric": self.metric,
            "mean": self.mean,
            "std": self.std,
            "regret": None if regret is None else float(regret.mean()),
            "bound": None if self.bound is None else float(self.bound.mean()),
            "not_covered": self.not_covered or None,
            "best_in_hindsight": None if best is None else float(best.mean()),
            "random_model": None if random is None else float(random.mean()),
            "rounds": self.config.rounds,
            "clients": self.config.clients,
            "interval": self.config.interval,
            "budget": self.config.budget,
            "bandwidth": self.config.bandwidth,
            "bytes_down": int(self.clients["down"].sum()),
            "bytes_up": int(self.clients["up"].sum()),
            "most_bytes_held": int(self.clients["most_held"].max()),
            "revision": self.revision,
            "seconds": self.seconds,
            "folder": None if self.folder is None else str(self.folder),
        }
