"""Who uploads: clients are grouped to fit the bandwidth, and one group is drawn per exchange."""

from __future__ import annotations

from dataclasses import dataclass

from ofms.core.packing import first_fit_decreasing
from ofms.core.typing import Flags, Integers


@dataclass(frozen=True)
class Groups:
    """The group of each client, the number of groups α, and the drawn group."""

    group: Integers
    count: int
    drawn: int

    @property
    def uploads(self) -> Flags:
        """G_t as flags over clients."""
        uploads: Flags = self.group == self.drawn
        return uploads


def upload_needs(wanted: Flags, upload: Integers) -> Integers:
    """e_i = Σ_{k ∈ S_i} b_k (alg:6, step 10), in bytes.

    >>> import numpy as np
    >>> upload_needs(np.array([[True, False, True]]), np.array([3, 4, 5])).tolist()
    [8]
    """
    return wanted @ upload


def draw_group(needs: Integers, bandwidth: int, uniform: float) -> Groups:
    """Split clients into groups that fit `bandwidth` and draw one (alg:6, steps 12 to 14).

    Examples
    --------
    >>> import numpy as np
    >>> groups = draw_group(np.array([4, 4, 2]), bandwidth=6, uniform=0.6)
    >>> groups.group.tolist(), groups.count, groups.uploads.tolist()
    ([0, 1, 0], 2, [False, True, False])
    """
    packing = first_fit_decreasing(needs, bandwidth)
    drawn = min(int(uniform * packing.count), packing.count - 1)
    return Groups(packing.bin, packing.count, drawn)


def most_groups(clients: int, largest_need: int, bandwidth: int) -> int:
    """An upper bound on α, the number of groups by first-fit decreasing, for any requests.

    A group of fewer than ⌊E / e_max⌋ clients has room for one more of any need, so only the last one can be that small.

    >>> most_groups(clients=100, largest_need=5, bandwidth=250)
    2
    """
    return -(-clients // max(1, bandwidth // max(1, largest_need)))
