"""Air: hourly air quality at four sites in Beijing; the target is NO2 (UCI 501).

Models are pre-trained on Dongsi and Dingling; clients see Aotizhongxin and Changping, in time order. Rows with a
missing value are dropped. Feature vectors are divided by their largest Euclidean norm, targets scaled to [0, 1], both
over the rows of all clients at the paper's size, so that a smaller run sees the same numbers.

References
----------
S. Zhang et al., "Cautionary tales on air-quality improvement in Beijing", Proc. R. Soc. A 473, 2017.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats
from ofms.data.folder import data_folder, require_checksum
from ofms.data.stream import Stream, Task, TrainingSet

FEATURES = (
    *("month", "day", "hour", "PM2.5", "PM10", "SO2", "CO", "O3"),
    *("TEMP", "PRES", "DEWP", "RAIN", "wd", "WSPM"),
)
TARGET = "NO2"
TEST_SITES = ("Aotizhongxin", "Changping")
TRAINING_SITES = ("Dongsi", "Dingling")
_ROWS_SEEN_AT_A_SITE = 10_000
_ROWS_TRAINED_AT_A_SITE = 30_000
_MD5 = {
    "Aotizhongxin": "72a306d7a095e718c2b46ab482d5a1ac",
    "Changping": "1313dca76b70156c98c3bdab05c48f17",
    "Dingling": "ead8b0abf1be2c5fcbbd5c64c1dfedca",
    "Dongsi": "6b446b87b3ba1acc81d055308cb032bd",
}


class Air:
    """The dataset."""

    name = "air"
    task: Task = "regression"
    summary = "hourly air quality at four sites in Beijing, predicting NO2; needs OFMS_DATA/air"

    def check(self) -> str:
        for site, checksum in _MD5.items():
            require_checksum(_path(site), checksum)
        return f"air: {len(_MD5)} sites in {data_folder() / 'air'}"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        at_first = -(-clients // 2)
        needed = at_first * rounds
        parts = [_read_site(site, max(needed, _ROWS_SEEN_AT_A_SITE)) for site in TEST_SITES]
        features, targets = _scaled([part[0] for part in parts], [part[1] for part in parts])
        for site, rows in zip(TEST_SITES, features, strict=True):
            if len(rows) < needed:
                raise InvalidInput(
                    "rounds × clients",
                    f"{rounds} × {clients}",
                    f"{site} has {len(rows):,} complete rows; ask for fewer",
                )
        counts = (at_first, clients - at_first)
        x = [
            rows[: count * rounds].reshape(count, rounds, len(FEATURES))
            for rows, count in zip(features, counts, strict=True)
        ]
        y = [values[: count * rounds].reshape(count, rounds) for values, count in zip(targets, counts, strict=True)]
        return Stream(np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.float32), self.task)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        parts = [_read_site(site, _ROWS_TRAINED_AT_A_SITE) for site in TRAINING_SITES]
        features, targets = _scaled([part[0] for part in parts], [part[1] for part in parts])
        return [
            TrainingSet(site.lower(), x.astype(np.float32), y.astype(np.float32))
            for site, x, y in zip(TRAINING_SITES, features, targets, strict=True)
        ]


def _path(site: str) -> Path:
    return data_folder() / "air" / f"PRSA_Data_{site}_20130301-20170228.csv"


def _read_site(site: str, rows: int) -> tuple[Floats, Floats]:
    """Features and targets of a site's first complete rows; wind directions numbered as they first appear."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("dataset", "air", "reading it needs pandas: pip install 'ofms[experiments]'") from None
    path = _path(site)
    if not path.is_file():
        raise InvalidInput(
            "OFMS_DATA", data_folder(), f"{path.name} is not in its folder 'air'; put UCI 501's files there"
        )
    try:
        table = pandas.read_csv(path)
    except (ValueError, OSError) as error:
        raise InvalidInput("file", path, f"it cannot be read as CSV ({error}); fetch it again") from None
    missing = [column for column in (*FEATURES, TARGET) if column not in table.columns]
    if missing:
        raise InvalidInput("file", path, f"the column {missing[0]!r} is missing; fetch it again")
    table = table.dropna()
    table["wd"] = pandas.factorize(table["wd"])[0]
    try:
        values = table[[*FEATURES, TARGET]].iloc[:rows].to_numpy(dtype=np.float64)
    except ValueError as error:
        raise InvalidInput("file", path, f"a value is not a number ({error}); fetch it again") from None
    return values[:, :-1], values[:, -1]


def _scaled(features: list[Floats], targets: list[Floats]) -> tuple[list[Floats], list[Floats]]:
    longest = max(float(np.linalg.norm(rows, axis=1).max()) for rows in features)
    low = min(float(values.min()) for values in targets)
    high = max(float(values.max()) for values in targets)
    return [rows / longest for rows in features], [(values - low) / (high - low) for values in targets]


dataset = Air()
