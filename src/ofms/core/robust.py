"""How the updates of several clients become one: their sum, or a robust one that a few of them cannot move far.

A robust total is a robust location of the clients' weighted updates, times their number. If the updates are equal, it
is their sum. Of one client it is that client's update, of two their sum: it needs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Flags, Floats, Integers

Kind = Literal["sum", "median", "trimmed-mean", "clipped"]
AGGREGATIONS = "sum, median, trimmed-mean, clipped; with a number, as trimmed-mean:0.3 or clipped:2"

_TRIMMED, _CLIPPED = 0.35, 1.0
_FARTHEST = 3.0
# Numbers that are sorted at once: further memory than that of the updates is bounded.
_VALUES_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Aggregation:
    """How the updates of a model are aggregated.

    Attributes
    ----------
    kind
        `sum`; `median`, by coordinate; `trimmed-mean`, by coordinate; `clipped`, the sum of updates that are shortened
        to a multiple of their usual norm.
    number
        The share that a trimmed mean leaves out at either end, or the multiple of the usual norm.

    Examples
    --------
    >>> Aggregation.of("trimmed-mean")
    Aggregation(kind='trimmed-mean', number=0.35)
    >>> str(Aggregation.of("clipped:2"))
    'clipped:2'
    """

    kind: Kind = "sum"
    number: float = 0.0

    @classmethod
    def of(cls, text: str | None) -> Aggregation:
        """As in a configuration; None for the sum."""
        name, separated, number = (text or "sum").partition(":")
        if name not in get_args(Kind):
            raise InvalidInput("aggregation", text, suggest(name, get_args(Kind)))
        if name in ("sum", "median"):
            if separated:
                raise InvalidInput("aggregation", text, f"{name} takes no number; use {name}")
            return cls(name)  # type: ignore[arg-type]
        value = _TRIMMED if name == "trimmed-mean" else _CLIPPED
        if separated:
            try:
                value = float(number)
            except ValueError:
                value = -1.0
        if name == "trimmed-mean" and not 0 <= value < 0.5:
            raise InvalidInput("aggregation", text, "give the share at either end, from 0 and below 0.5")
        if name == "clipped" and not 0 < value < np.inf:
            raise InvalidInput("aggregation", text, "give a multiple of the usual norm, above 0")
        return cls(name, value)  # type: ignore[arg-type]

    @property
    def robust(self) -> bool:
        return self.kind != "sum"

    def __str__(self) -> str:
        return f"{self.kind}:{self.number:g}" if self.number else self.kind


SUM = Aggregation()


def total(updates: AnyArray, aggregation: Aggregation, factors: Floats | None = None) -> AnyArray:
    """[P] from [m, P] weighted updates of m clients, which are shortened by [m] `factors` first.

    >>> updates = np.array([[1.0, 1.0], [1.0, 3.0], [1.0, -80.0]])
    >>> total(updates, Aggregation.of("median"))
    array([3., 3.])
    >>> total(updates, Aggregation.of("trimmed-mean:0.4"))
    array([3., 3.])
    >>> total(updates, Aggregation.of("clipped"), np.array([1.0, 1.0, 0.1]))
    array([ 2.1, -4. ])
    """
    clients, count = updates.shape
    found = np.empty(count, dtype=updates.dtype)
    outer = 0
    if aggregation.kind == "median":
        # The mean of the middle one or two.
        outer = (clients - 1) // 2
    elif aggregation.kind == "trimmed-mean":
        outer = min((clients - 1) // 2, int(aggregation.number * clients))
    width = max(1, _VALUES_AT_ONCE // clients)
    for first in range(0, count, width):
        some = np.ascontiguousarray(updates[:, first : first + width].T)
        if factors is not None and (factors != 1).any():
            some *= factors
        if outer:
            some.sort(axis=1)
        # A sum beyond the range of numbers quarantines the model.
        with np.errstate(over="ignore"):
            sums = some[:, outer : clients - outer].sum(axis=1, dtype=np.float64)
            found[first : first + width] = sums * (clients / (clients - 2 * outer))
    return found


def norms(updates: AnyArray) -> Floats:
    """[m] the norms of [m, P] updates."""
    squares: Floats = np.einsum("mp,mp->m", updates, updates, dtype=np.float64)
    return np.sqrt(squares)


def clip_factors(lengths: Floats, aggregation: Aggregation, usual: float) -> Floats:
    """[m] by what updates of [m] norms are shortened: min(1, c · usual norm / norm).

    c is 3 before a median or a trimmed mean, for exchanges in which most clients are hostile.

    >>> clip_factors(np.array([1.0, 2.0, 8.0]), Aggregation.of("clipped"), 2.0).tolist()
    [1.0, 1.0, 0.25]
    """
    most = usual * (aggregation.number if aggregation.kind == "clipped" else _FARTHEST)
    with np.errstate(over="ignore"):  # An update of norm 0 is not shortened.
        return np.minimum(1.0, most / np.maximum(lengths, np.finfo(np.float64).tiny))


def robust_losses(losses: Floats, reported: Flags, aggregation: Aggregation) -> Floats:
    """[N, K] losses whose sum over the clients that [N, K] `reported` one is robust.

    The median or the trimmed mean for each of them; or, clipped, none above three times the median.
    """
    made = losses.copy()
    for model in np.flatnonzero(reported.any(axis=0)).tolist():
        rows = reported[:, model]
        some = losses[rows, model]
        if aggregation.kind == "clipped":
            made[rows, model] = np.minimum(some, _FARTHEST * np.median(some))
        else:
            made[rows, model] = total(some[:, None], aggregation)[0] / some.size
    return made


def scaled_losses(losses: Floats, clients: Integers, factors: Mapping[int, tuple[Integers, Floats]]) -> Floats:
    """[N, K] losses of [N] clients, those of a model times the factors by which its updates were shortened.

    A shortened update is the gradient of so much of the client's loss.
    """
    made, row = losses.copy(), {client: place for place, client in enumerate(clients.tolist())}
    for model, (some, by) in factors.items():
        made[[row[client] for client in some.tolist()], model] *= by
    return made


def moderate_votes(losses: Floats) -> Floats:
    """[N, K] comparisons, each at most as large as the median of those of its model that are not 0.

    >>> moderate_votes(np.array([[0.1], [-0.2], [0.0], [-900.0]])).ravel().tolist()
    [0.1, -0.2, 0.0, -0.2]
    """
    sizes = np.abs(losses)
    known = [each[each > 0] for each in sizes.T]
    most = np.array([np.median(each) if each.size else 0.0 for each in known])
    return np.clip(losses, -most, most)
