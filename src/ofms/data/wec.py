"""WEC: the power of farms of sixteen wave energy converters off four Australian sites (UCI 494).

A row holds the sixteen x coordinates, the sixteen y coordinates, the sixteen powers and the total power, which is the
target. Models are pre-trained on Sydney and Tasmania; clients see Adelaide and Perth, in row order.

References
----------
M. Neshat et al., "A detailed comparison of meta-heuristic methods for optimising wave energy converter placements",
GECCO 2018.
"""

from __future__ import annotations

import io

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats
from ofms.data.download import Archive, fetch_files
from ofms.data.drift import Drift
from ofms.data.folder import data_folder, read_file
from ofms.data.sites import Rows, drifting_site_stream, rows_needed, site_stream, site_training_sets
from ofms.data.stream import Stream, Task, TrainingSet

TEST_SITES = ("Adelaide", "Perth")
TRAINING_SITES = ("Sydney", "Tasmania")
ROWS, COLUMNS = 72_000, 49
TRAINING_ROWS_PER_SITE = 70_000
# No checksums are published; shape and values are checked instead.
FILES = [f"{site}_Data.csv" for site in (*TEST_SITES, *TRAINING_SITES)]
_ARCHIVE = Archive("https://archive.ics.uci.edu/static/public/494/wave+energy+converters.zip")


class Wec:
    """The dataset."""

    name = "wec"
    task: Task = "regression"
    summary = "farms of sixteen wave energy converters at four sites, predicting their total power"

    def fetch(self) -> None:
        folder = data_folder() / self.name
        fetch_files(folder, FILES, _parse, _ARCHIVE.fetch)

    def check(self) -> str:
        for name in FILES:
            _read(name)
        return f"wec: {len(FILES)} sites of {ROWS:,} rows in {data_folder() / self.name}"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        needed = rows_needed(clients, rounds)
        return site_stream({site: _read_site(site, needed) for site in TEST_SITES}, clients=clients, rounds=rounds)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        return drifting_site_stream(self, clients=clients, rounds=rounds, seed=seed, drift=drift)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        return site_training_sets({site: _read_site(site, TRAINING_ROWS_PER_SITE) for site in TRAINING_SITES})


def split_columns(table: Floats) -> Rows:
    """Split rows in the dataset's format into features and target."""
    return table[:, :-1], table[:, -1]


def _read_site(site: str, rows: int) -> Rows:
    return split_columns(_read(f"{site}_Data.csv")[:rows])


def _read(name: str) -> Floats:
    return _parse(name, read_file(data_folder() / "wec" / name, "wec"))


def _parse(name: str, content: bytes) -> Floats:
    """The rows of a site's file; rejects a file whose shape differs from the published one."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("dataset", "wec", "it requires pandas: pip install 'ofms[experiments]'") from None
    path, remedy = data_folder() / "wec" / name, "'ofms data wec' downloads it again"
    try:
        values = pandas.read_csv(io.BytesIO(content), header=None).to_numpy(dtype=np.float64)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("file", path, f"it is not a table of numbers ({reason}); {remedy}") from None
    if values.shape != (ROWS, COLUMNS):
        found = f"{values.shape[0]:,} rows of {values.shape[1]} columns"
        raise InvalidInput("file", path, f"it has {found}, not {ROWS:,} of {COLUMNS}; {remedy}")
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise InvalidInput("file", path, f"row {row + 1} has a missing value; {remedy}")
    return values


dataset = Wec()
