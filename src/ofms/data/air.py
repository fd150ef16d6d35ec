"""Air: hourly air quality at four sites in Beijing; the target is NO2 (UCI 501).

Models are pre-trained on Dongsi and Dingling; clients see Aotizhongxin and Changping, in time order. Rows with a
missing value are dropped. Feature vectors are divided by their largest Euclidean norm, targets scaled to [0, 1], both
over the rows of all clients at the paper's size, so that a smaller run sees the same values.

References
----------
S. Zhang et al., "Cautionary tales on air-quality improvement in Beijing", Proc. R. Soc. A 473, 2017.
"""

from __future__ import annotations

import io

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.data.download import Archive, fetch_files
from ofms.data.drift import Drift
from ofms.data.folder import VerifiedFiles
from ofms.data.sites import Rows, drifting_site_stream, rows_needed, site_stream, site_training_sets
from ofms.data.stream import Stream, Task, TrainingSet

FEATURES = (
    *("month", "day", "hour", "PM2.5", "PM10", "SO2", "CO", "O3"),
    *("TEMP", "PRES", "DEWP", "RAIN", "wd", "WSPM"),
)
TARGET = "NO2"
TEST_SITES = ("Aotizhongxin", "Changping")
TRAINING_SITES = ("Dongsi", "Dingling")
_TRAINING_ROWS_PER_SITE = 30_000
_FILES = VerifiedFiles(
    "air",
    {
        "PRSA_Data_Aotizhongxin_20130301-20170228.csv": "72a306d7a095e718c2b46ab482d5a1ac",
        "PRSA_Data_Changping_20130301-20170228.csv": "1313dca76b70156c98c3bdab05c48f17",
        "PRSA_Data_Dingling_20130301-20170228.csv": "ead8b0abf1be2c5fcbbd5c64c1dfedca",
        "PRSA_Data_Dongsi_20130301-20170228.csv": "6b446b87b3ba1acc81d055308cb032bd",
    },
)
# No MD5: the host repacks the archive occasionally. The files in it are verified.
_ARCHIVE = Archive("https://archive.ics.uci.edu/static/public/501/beijing+multi+site+air+quality+data.zip")


class Air:
    """The dataset."""

    name = "air"
    task: Task = "regression"
    summary = "hourly air quality at four sites in Beijing, predicting NO2"

    def fetch(self) -> None:
        fetch_files(_FILES.folder, _FILES.md5, _FILES.require, _ARCHIVE.fetch)

    def check(self) -> str:
        _FILES.check()
        return f"air: {len(_FILES.md5)} sites in {_FILES.folder}"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        needed = rows_needed(clients, rounds)
        return site_stream({site: _read_site(site, needed) for site in TEST_SITES}, clients=clients, rounds=rounds)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        return drifting_site_stream(self, clients=clients, rounds=rounds, seed=seed, drift=drift)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        return site_training_sets({site: _read_site(site, _TRAINING_ROWS_PER_SITE) for site in TRAINING_SITES})


def _read_site(site: str, rows: int) -> Rows:
    """Features and targets of a site's first complete rows; wind directions are numbered in order of appearance."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("dataset", "air", "it requires pandas: pip install 'ofms[experiments]'") from None
    content = _FILES.read(f"PRSA_Data_{site}_20130301-20170228.csv")
    table = pandas.read_csv(io.BytesIO(content)).dropna()
    table["wd"] = pandas.factorize(table["wd"])[0]
    values = table[[*FEATURES, TARGET]].iloc[:rows].to_numpy(dtype=np.float64)
    return values[:, :-1], values[:, -1]


dataset = Air()
