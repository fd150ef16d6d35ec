"""Bytes of models on the network and in the clients' memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.messages import Catalogue, Grants, Reports
from ofms.core.typing import Integers

_BYTES_PER_LOSS = 8


@dataclass(frozen=True, eq=False)
class Traffic:
    """[N] bytes of one exchange: parameters down, updates and losses up, models held."""

    down: Integers
    up: Integers
    held: Integers


def count_bytes(catalogue: Catalogue, grants: Grants, reports: Reports, copies: int = 1) -> Traffic:
    """Count the bytes of an exchange from its messages.

    Parameters
    ----------
    copies
        Copies that the policy keeps of a held model: two if it predicts with an adapted copy.

    Examples
    --------
    >>> one = np.array([[True, False]])
    >>> catalogue = Catalogue(("a", "b"), np.array([40, 60]), np.array([10, 60]), np.array([0, 0]))
    >>> grants = Grants(0, np.array([0]), np.array([[True, True]]), one, None, np.array([True]), 1, np.array([0, 0]))
    >>> count_bytes(catalogue, grants, Reports(0, np.array([0]), None, one))
    Traffic(down=array([40]), up=array([10]), held=array([100]))
    """
    up = reports.updated @ catalogue.upload
    if reports.losses is not None:
        up = up + _BYTES_PER_LOSS * np.isfinite(reports.losses).sum(axis=1)
    return Traffic(grants.sent @ catalogue.storage, up, copies * (grants.held @ catalogue.storage))


def human_bytes(count: float) -> str:
    """A readable number of bytes.

    >>> human_bytes(1536), human_bytes(12), human_bytes(5 * 2**20)
    ('1.5 KiB', '12 B', '5.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
