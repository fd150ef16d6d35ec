"""Metrics by round: one record per round on disk, one array per name in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ofms.core.typing import AnyArray

_QUANTILES = "regret_quantiles"
_QUANTILE_COLUMNS = ("regret_10", "regret_50", "regret_90")
# Names, not numbers: the run's figures and warnings have them too.
EVENTS = ("left_out", "quarantined")


def columns_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, AnyArray]:
    """Arrays over rounds from one record per round; NaN if a record has no value.

    >>> columns = columns_of([{"round": 1, "mean": 0.5}, {"round": 2, "mean": 0.6, "regret_quantiles": [1, 2, 3]}])
    >>> columns["round"].tolist(), columns["regret_90"].tolist()
    ([1, 2], [nan, 3.0])
    """
    columns: dict[str, AnyArray] = {}
    for name in dict.fromkeys(name for line in lines for name in line if name not in EVENTS):
        values = [line.get(name) for line in lines]
        if name == _QUANTILES:
            table = np.array([[np.nan] * 3 if value is None else value for value in values], dtype=np.float64)
            columns |= dict(zip(_QUANTILE_COLUMNS, table.T, strict=True))
        else:
            columns[name] = np.array([np.nan if value is None else value for value in values])
    return columns


def lines_of(columns: Mapping[str, AnyArray]) -> list[dict[str, Any]]:
    """One record per round: the inverse of `columns_of`."""
    single = {name: values.tolist() for name, values in columns.items() if name not in _QUANTILE_COLUMNS}
    if _QUANTILE_COLUMNS[0] in columns:
        single[_QUANTILES] = np.stack([columns[name] for name in _QUANTILE_COLUMNS], axis=1).tolist()
    return [dict(zip(single, values, strict=True)) for values in zip(*single.values(), strict=True)]
