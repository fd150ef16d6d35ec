"""Arrays that grow round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ofms.core.typing import AnyArray


@dataclass(frozen=True, eq=False)
class Layers:
    """An array [N, R, ...] in R parts [N, ...]: to append one copies none of the others.

    Attributes
    ----------
    parts
        The R parts.
    none
        [N, 0, ...] the array without any part.

    Examples
    --------
    >>> layers = Layers.of(np.zeros((2, 0), dtype=np.int64)).append(np.array([1, 2])).append(np.array([3, 4]))
    >>> layers.whole.tolist()
    [[1, 3], [2, 4]]
    """

    parts: tuple[AnyArray, ...]
    none: AnyArray

    @classmethod
    def of(cls, whole: AnyArray) -> Layers:
        """From the array as a whole."""
        return cls(tuple(whole[:, place] for place in range(whole.shape[1])), whole[:, :0])

    @property
    def whole(self) -> AnyArray:
        """[N, R, ...], with clients last in memory."""
        stacked = self.stacked(self.none.dtype)
        return stacked.transpose(-1, 0, *range(stacked.ndim - 2, 0, -1))

    def stacked(self, dtype: np.dtype[Any] | type) -> AnyArray:
        """[R, ..., N], the axes between in reverse order."""
        if not self.parts:
            return np.zeros((0, *self.none.shape[:1:-1], len(self.none)), dtype=dtype)
        return np.stack([part.T for part in self.parts], dtype=dtype)

    def append(self, part: AnyArray) -> Layers:
        """With one more part."""
        return Layers((*self.parts, part), self.none)

    def only(self, places: slice) -> Layers:
        """Some of the parts."""
        return Layers(self.parts[places], self.none)
