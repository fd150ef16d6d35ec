"""The cells of a table, their size and number of seeds, and sections of tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ofms.data import load_dataset
from ofms.data.folder import data_folder
from ofms.data.wec import FILES as WEC_FILES
from ofms.drawing.charts import Curve, draw_curves
from ofms.drawing.dots import DotPanel, draw_dots
from ofms.drawing.tables import Table
from ofms.reproduction.cells import Cell, CellStore
from ofms.reproduction.method_rows import FROZEN_OFMS_FT, METHOD, Row
from ofms.runs.result import Result

POLICIES = {
    "mab": "MAB",
    "non-fed-oms": "Non-Fed-OMS",
    "rms-ft": "RMS-FT",
    "b-fed-omft": "B-Fed-OMFT",
    "fed-omd": "Fed-OMD",
    "perfedavg": "PerFedAvg",
    "ofms-ft": "OFMS-FT",
    "budgeted-experts": "budgeted expert advice (not in the paper)",
}
_TITLES = POLICIES | {
    "late-hedge": "late hedging",
    "fed-poe": "Fed-POE",
    "explore-then-commit": "the best model on the first 50 labels",
    "follow-the-leader": "follow the leader",
}
# The rows of `ofms compare` if no policy is named.
ROWS = {
    "late-hedge": Row("late-hedge"),
    "late hedging, frozen": METHOD,
    **{name: Row(name) for name in POLICIES},
    "OFMS-FT, frozen": FROZEN_OFMS_FT,
    "fed-poe": Row("fed-poe"),
    "explore-then-commit": Row("explore-then-commit"),
    "follow-the-leader": Row("follow-the-leader"),
}
TITLES = {
    "cifar10": "CIFAR-10",
    "mnist": "MNIST",
    "air": "Air",
    "wec": "WEC",
    "wec-synthetic": "WEC (synthetic)",
    "digits": "digits",
}
BUDGETS = ("2", "5", "10")
MIXED = ("3:60%,5:40%", "3:50%,5:50%", "3:40%,5:60%")
IMAGE_SETS = ("mnist", "cifar10")


def row_of(name: str) -> Row:
    """A row of ROWS, or a policy with its own settings."""
    return ROWS.get(name, Row(name))


def title_of_row(name: str) -> str:
    """The title of a row: of ROWS, or the policy's name."""
    return _TITLES.get(name, name)


def title_of(experiment: str) -> str:
    """The title of a column; for a user-defined experiment, its file's name."""
    return TITLES.get(experiment, Path(experiment).stem)


@dataclass(frozen=True)
class Size:
    """The size of runs: the paper's, or a smaller one that takes minutes."""

    quick: bool = False
    seeds: int | None = None
    first_seed: int = 0

    def given(self, experiment: str) -> dict[str, Any]:
        """The settings that make an experiment smaller than in the paper."""
        if not self.quick:
            return {}
        return {"clients": 5, "rounds": 56} if experiment in IMAGE_SETS else {"clients": 20, "rounds": 100}

    def seed_range(self, experiment: str) -> range:
        """Five seeds by default, two when quick, one for the large image sets."""
        default = 1 if experiment in IMAGE_SETS else 2 if self.quick else 5
        return range(self.first_seed, self.first_seed + (default if self.seeds is None else self.seeds))


@dataclass(frozen=True)
class Figure:
    """A chart with panels side by side, each a title and its curves."""

    name: str
    title: str
    panels: Sequence[tuple[str, Sequence[Curve]]]
    ylabel: str
    quick: bool = False

    def draw(self, paths: Sequence[Path]) -> None:
        """Write the chart to files, each in the format of its suffix."""
        panels = (
            [(f"{title} (quick look)".strip(), curves) for title, curves in self.panels] if self.quick else self.panels
        )
        draw_curves(panels, paths, ylabel=self.ylabel)


@dataclass(frozen=True)
class DotFigure:
    """A chart of values with their spread, one panel per dataset."""

    name: str
    title: str
    panels: Sequence[DotPanel]
    quick: bool = False

    def draw(self, paths: Sequence[Path]) -> None:
        """Write the chart to files, each in the format of its suffix."""
        panels = (
            [replace(panel, title=f"{panel.title} (quick look)") for panel in self.panels]
            if self.quick
            else self.panels
        )
        draw_dots(panels, paths)


@dataclass(frozen=True)
class Section:
    """Tables and charts of one target, and warnings about the runs behind them."""

    name: str
    title: str
    text: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | DotFigure] = ()
    warnings: Sequence[str] = ()


def marked_as_quick(section: Section) -> Section:
    """A section whose title, tables and charts say that its figures are of a quick look."""
    tables = [
        replace(table, title=f"Quick look: {table.title}", data=_with_quick(table.data)) for table in section.tables
    ]
    figures = [replace(figure, title=f"Quick look: {figure.title}", quick=True) for figure in section.figures]
    return replace(section, title=f"{section.title} (quick look)", tables=tables, figures=figures)


def _with_quick(data: Any) -> Any:
    """A table's figures for JSON, each with `quick`."""
    return [{"quick": True} | row if isinstance(row, dict) else row for row in data] if isinstance(data, list) else data


@dataclass(frozen=True)
class Bench:
    """The store of cells, the columns (`chosen` if the user named them), and the size of runs.

    With `cached`, frozen runs may look up their models' outputs.
    """

    store: CellStore
    columns: Sequence[str]
    size: Size = field(default_factory=Size)
    chosen: bool = False
    cached: bool = False

    def runs(self, experiment: str, policy: str = "ofms-ft", **given: Any) -> list[Result]:
        """The results behind one entry of a table, one per seed."""
        size = self.size.given(experiment)
        return self.store.results(
            Cell(experiment, policy, seed, size | given, cached=self.cached)
            for seed in self.size.seed_range(experiment)
        )

    def has_cells(self, experiment: str) -> bool:
        """Whether an experiment's cells can be shown or run."""
        return self.store.runs_missing or self.store.has_dictionary(experiment)

    def small_columns(self) -> list[str]:
        """The columns whose runs take seconds."""
        return [column for column in self.columns if column not in IMAGE_SETS]


def columns_here() -> list[str]:
    """The paper's four datasets, with synthetic wave farms if the real ones are missing."""
    if not any((data_folder() / "wec" / name).exists() for name in WEC_FILES):
        return ["cifar10", "mnist", "air", "wec-synthetic"]
    # Reject damaged files here, so that synthetic data never replaces real data unnoticed.
    load_dataset("wec").check()
    return ["cifar10", "mnist", "air", "wec"]
