"""How long the updates of each model usually are, by what several exchanges agree on.

Few clients upload a model in one exchange: now and then most of them are hostile. Over several exchanges that is rare.
Before the third, nothing is usual.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ofms.core.typing import AnyArray, Floats

_EXCHANGES, _LEAST = 20, 3


class UsualNorms:
    """By model, the median norms of its updates in the last exchanges.

    >>> norms = UsualNorms()
    >>> [norms.add(3, np.array(each)) for each in ([1.0, 1.2, 9.0], [1.0, 80.0, 90.0], [1.1, 1.4, 2.0])]
    [0.0, 0.0, 1.2]
    """

    def __init__(self) -> None:
        self._medians: dict[int, list[float]] = {}

    def add(self, model: int, lengths: Floats) -> float:
        """Add the [m] norms of an exchange; return the lower quartile of the medians; 0 before there are three."""
        known = self._medians.setdefault(model, [])
        known.append(float(np.median(lengths)))
        del known[:-_EXCHANGES]
        return 0.0 if len(known) < _LEAST else float(np.quantile(known, 0.25, method="lower"))

    def to_arrays(self, prefix: str) -> dict[str, AnyArray]:
        """All state, as arrays."""
        return {f"{prefix}{model}": np.array(known) for model, known in self._medians.items()}

    def load_arrays(self, arrays: Mapping[str, AnyArray], prefix: str) -> None:
        """The inverse of `to_arrays`."""
        self._medians = {
            int(key.removeprefix(prefix)): array.tolist() for key, array in arrays.items() if key.startswith(prefix)
        }
