"""What devices report about their predictions, for people who watch a fleet; nothing is learnt from it.

A report may carry `statistics`: how many labels arrived since the last report, the summed score of their predictions
(1 for each right class, or squared errors), and the weights of the models in predictions. A device may leave out any.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import Flags
from ofms.storage.envelope import Envelope
from ofms.storage.typed import from_values

# Exchanges that the status keeps, for charts.
MOST_RECENT = 240
_MOST_SAMPLES = 10**9
_MOST_SCORE = 1e300
_ROUNDING = 1e-3


class Statistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device reported; `use` is None if it keeps that to itself."""

    samples: int
    score: float
    use: list[float] | None = None


class ClosedExchange(msgspec.Struct):
    """An exchange as the status shows it: when it closed, its traffic, and the score of its predictions.

    Attributes
    ----------
    bytes_down, bytes_up, refused
        Of all exchanges so far.
    late
        Answers to earlier exchanges that count in it.
    score
        The mean over all labels that devices reported; None if they reported none.
    """

    exchange: int
    closed: float
    granted: int
    answered: int
    updates: int
    bytes_down: int
    bytes_up: int
    refused: int
    late: int = 0
    samples: int = 0
    score: float | None = None


class ModelUse(msgspec.Struct):
    """Of the last exchange, by model name: the share of devices that hold it, and its mean weight in predictions.

    `reporting` devices reported weights; the means are over these.
    """

    held: dict[str, float] = {}
    used: dict[str, float] = {}
    reporting: int = 0


def read_statistics(envelope: Envelope, models: int, task: str) -> Statistics | None:
    """Read and validate what a device reports about its predictions; None if it reports nothing."""
    values = envelope.values.get("statistics")
    if values is None:
        return None
    try:
        found = from_values(values, Statistics)
    except msgspec.ValidationError as error:
        raise InvalidInput("statistics", repr(values)[:40], str(error)[:200]) from None
    if not 0 <= found.samples <= _MOST_SAMPLES:
        raise InvalidInput("statistics", f"{found.samples} samples", f"give 0 to {_MOST_SAMPLES}")
    most = found.samples if task == "classification" else _MOST_SCORE
    if not 0 <= found.score <= most:
        raise InvalidInput("statistics", f"a score of {found.score:g}", f"it is from 0 to {most:g}")
    if found.use is not None:
        share = all(math.isfinite(weight) and 0 <= weight <= 1 + _ROUNDING for weight in found.use)
        if len(found.use) != models or not share or abs(sum(found.use) - 1) > _ROUNDING:
            raise InvalidInput("statistics", "weights of models", f"give {models} shares that sum to 1")
    return found


def closed_exchange(
    exchange: int,
    *,
    granted: int,
    answered: int,
    updates: int,
    late: int,
    counts: Iterable[Any],
    found: Iterable[Statistics],
) -> ClosedExchange:
    """The record of an exchange that closes now; `counts` are those of all devices."""
    counts, found = list(counts), list(found)
    samples = sum(each.samples for each in found)
    return ClosedExchange(
        exchange,
        time.time(),
        granted,
        answered,
        updates,
        bytes_down=sum(each.bytes_down for each in counts),
        bytes_up=sum(each.bytes_up for each in counts),
        refused=sum(each.refused for each in counts),
        late=late,
        samples=samples,
        score=sum(each.score for each in found) / samples if samples else None,
    )


def model_use(names: Sequence[str], held: Mapping[int, Flags], found: Mapping[int, Statistics]) -> ModelUse:
    """Which models the devices of an exchange held, and which of them predicted as far as devices say so."""
    shares = np.concatenate([*held.values()]).mean(axis=0) if held else np.zeros(len(names))
    reported = [each.use for each in found.values() if each.use is not None]
    used = np.mean(reported, axis=0).tolist() if reported else []
    return ModelUse(
        dict(zip(names, shares.tolist(), strict=True)), dict(zip(names, used, strict=bool(used))), len(reported)
    )
